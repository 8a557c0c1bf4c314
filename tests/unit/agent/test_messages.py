from __future__ import annotations

from monolith.agent.messages import make_model_spec


def test_a_model_spec_names_a_version_a_label_or_neither() -> None:
    by_number = make_model_spec("m", 3, "predict")
    assert (by_number.name, by_number.version.value, by_number.signature_name) == ("m", 3, "predict")
    assert make_model_spec("m", "stable").version_label == "stable"
    assert make_model_spec("m").WhichOneof("version_choice") is None

"""Messages and files of the original's controller.

Pins hooks/server/service.proto and the file protocol of hooks/controller_hooks.
"""

from __future__ import annotations

from monolith.compat.hooks.action_file import ACTION_FILE, RESPONSE_FILE
from monolith.training.control import messages
from monolith.training.control.address import ADDRESS_FILE
from monolith.training.hooks.stop_file import LIMIT_FILE


def test_messages_have_the_originals_bytes() -> None:
    status = messages.GetBlockStatusResponse(blocked_indices=[0, 2], unblocked_indices=[1])
    assert status.SerializeToString().hex() == "0a0200021201" + "01"
    assert messages.GetTrainingStatusResponse(global_step=300).SerializeToString().hex() == "08ac02"
    for verb in ("StopTraining", "ResumeTraining", "SaveCheckpoint"):
        request, response = messages.METHODS[verb]
        assert request().SerializeToString() == response().SerializeToString() == b""


def test_the_service_has_five_methods() -> None:
    pool_file = messages.GetBlockStatusResponse.DESCRIPTOR.file
    service = pool_file.services_by_name["Controller"]
    assert service.full_name == messages.SERVICE
    assert [method.name for method in service.methods] == list(messages.METHODS)
    for method in service.methods:
        request, response = messages.METHODS[method.name]
        assert (method.input_type, method.output_type) == (request.DESCRIPTOR, response.DESCRIPTOR)


def test_files_have_the_originals_names() -> None:
    assert ADDRESS_FILE == "controller_server_addr.txt"
    assert (ACTION_FILE, RESPONSE_FILE) == ("monolith_action", "monolith_action_response")
    assert LIMIT_FILE == "limit_req_time"

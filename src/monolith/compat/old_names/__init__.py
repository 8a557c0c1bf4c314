"""Modules of the original that users import by their old names, such as ``monolith.base_model``.

This folder is part of the search path of the package ``monolith``, so ``import monolith.base_model`` finds
``base_model.py`` here. Each module warns once, when it is imported.
"""

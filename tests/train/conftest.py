from shared_programs import _share_programs  # noqa: F401

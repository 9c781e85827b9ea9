def missing() -> str | None:
    return "not there yet"

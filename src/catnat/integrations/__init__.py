"""Adapters to other libraries, one thin file each. Import the one you need; nothing else in catnat imports them."""

__all__: list[str] = []

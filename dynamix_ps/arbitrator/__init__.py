"""The service that turns window records into plans. The story starts in service.py."""

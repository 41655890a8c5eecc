"""Static files from the web process, in a form that suits ASGI.

WhiteNoise answers with a synchronous stream. Under ASGI Django reads such a stream to its end
first, with a warning for each; our files are small, so they are read at once.
"""

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile


class StaticFilesMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]  # untyped
    """WhiteNoise whose answers hold the whole file."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        """Answer with the file, or with 304 when the browser has it."""
        answer = static_file.get_response(request.method, request.META)
        body = b""
        if answer.file is not None:
            with answer.file:
                body = answer.file.read()
        response = HttpResponse(body, status=int(answer.status))
        del response.headers["content-type"]
        for name, value in answer.headers:
            response.headers[name] = value
        return response

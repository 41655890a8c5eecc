"""Bodies as JSON; what is wrong with one is said in the caller's language, and where."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import IO, Any

from django.utils.translation import gettext as _
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser


class JsonParser(JSONParser):
    """UTF-8, no NaN, no more levels than can be read, and no half of a character."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:  # decoded JSON
        """Decode a body.

        Raises:
            ParseError: it is no JSON, or holds what no text can.
        """
        body = stream.read()
        try:
            value = json.loads(body.decode(), parse_float=_finite, parse_constant=_finite)
            # Escapes may spell half of a pair of surrogates, which no database and no answer takes.
            json.dumps(value, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            message = _("The body is not JSON from line %(line)s, column %(column)s on.")
            place = {"line": error.lineno, "column": error.colno}
            raise ParseError(message % place) from error
        except RecursionError as error:
            raise ParseError(_("The body is nested too deeply.")) from error
        except UnicodeError as error:
            raise ParseError(_("The body is no text in UTF-8.")) from error
        except ValueError as error:
            raise ParseError(_("The body has a number that cannot be.")) from error
        return value


def _finite(text: str) -> float:
    """A number; NaN and infinities are no JSON, nor is what is too large to be told from one.

    Raises:
        ValueError: it is none.
    """
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number

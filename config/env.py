"""The environment, read once into a frozen value; everything that is wrong is said at once.

Nothing is required on one machine: the defaults name the servers that ``manage.py up`` starts.
Whoever names a database of their own runs in earnest, so then nothing secret has a default.
This module imports neither Django nor anything of ours: tests and tools read it first.
"""

import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

REPOSITORY = Path(__file__).resolve().parent.parent

# The kernel's limit for the path of a Unix socket is 108 bytes with its closing zero. The longest
# name that we put below the run folder is a session's, a UUID with some ten bytes around it.
MAX_RUN_PATH_BYTES = 107 - 50

# Django's own check wants at least this much.
MIN_SECRET_KEY_CHARS = 50

KNOWN_NAMES = frozenset(
    {
        "ALLOT_VAR",
        "ALLOT_RUN",
        "ALLOT_HOST",
        "ALLOT_PORT",
        "ALLOT_PUBLIC_URL",
        "ALLOT_DATABASE_URL",
        "ALLOT_REDIS_URL",
        "ALLOT_SECRET_KEY",
        "ALLOT_DEBUG",
        "ALLOT_ALLOWED_HOSTS",
        "ALLOT_WORKLOAD_PYTHON",
        "ALLOT_LOG_LEVEL",
        "ALLOT_RAW_SAMPLE_HOURS",
        "ALLOT_MAIL_URL",
        "ALLOT_MAIL_FROM",
    }
)

_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class EnvError(Exception):
    """The environment lacks names or holds values that cannot be used; lists all of them."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("The environment cannot be used:\n  " + "\n  ".join(problems))


@dataclass(frozen=True, slots=True)
class Env:
    """What the environment says, with defaults filled in."""

    # Data folder: database, logs, keys, the agent's folders.
    var: Path
    # Folder of Unix sockets; short, see MAX_RUN_PATH_BYTES.
    run: Path
    host: str
    port: int
    # Where browsers reach Allot; an https address turns the transport's protections on.
    public_url: str
    database_url: str
    redis_url: str
    # Whether `manage.py up` starts these servers itself.
    has_embedded_database: bool
    has_embedded_redis: bool
    secret_key: str
    debug: bool
    allowed_hosts: tuple[str, ...]
    # Python of the environment that sessions and trainings get.
    workload_python: Path
    log_level: str
    # How long single samples are kept; what is older lives on in roll-ups.
    raw_sample_hours: int
    # Mail server and sender; without a server no mail is sent.
    mail_url: str
    mail_from: str

    @property
    def is_https(self) -> bool:
        """Whether browsers come by https."""
        return self.public_url.startswith("https://")

    @property
    def postgres_dir(self) -> Path:
        """Data of the embedded PostgreSQL."""
        return self.var / "postgres"

    @property
    def valkey_dir(self) -> Path:
        """Data of the embedded Valkey."""
        return self.var / "valkey"

    @property
    def log_dir(self) -> Path:
        """One log per process of ``manage.py up``."""
        return self.var / "log"

    @property
    def agent_token_file(self) -> Path:
        """Bearer token that agents present; made by ``manage.py up``."""
        return self.var / "agent-token"

    @property
    def secret_key_file(self) -> Path:
        """Where ``manage.py up`` keeps the key that it made."""
        return secret_key_file(self.var)


def secret_key_file(var: Path) -> Path:
    """Name the file that holds the secret key when the environment does not."""
    return var / "secret-key"


def database_socket_url(folder: Path) -> str:
    """Name the embedded database by the folder of its socket."""
    return f"postgresql:///allot?host={quote(str(folder / 'pg'))}&user=allot"


def redis_socket_url(folder: Path) -> str:
    """Name the embedded Valkey by the folder of its socket."""
    return f"unix://{quote(str(folder / 'valkey.sock'))}"


def default_run(var: Path) -> Path:
    """Derive the folder of sockets from the data folder.

    Below the data folder where the path stays short enough; else in the system's folder for
    temporary files, under a name that only this data folder yields.
    """
    inside = var / "run"
    if len(os.fsencode(inside)) <= MAX_RUN_PATH_BYTES:
        return inside
    digest = hashlib.sha256(os.fsencode(var)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"allot-{os.getuid()}-{digest}"


class _Reader:
    """Takes names out of the environment and collects what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: list[str] = []

    def text(self, name: str, default: str) -> str:
        return self.environ.get(name, "").strip() or default

    def path(self, name: str, default: Path) -> Path:
        # Not resolved: a virtual environment's Python is a link, and must stay one.
        return Path(os.path.abspath(Path(self.text(name, str(default))).expanduser()))

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self.text(name, str(default))
        if value.isascii() and value.isdigit() and low <= int(value) <= high:
            return int(value)
        self.problems.append(f"{name} is {value!r}: it must be a whole number, {low} to {high}")
        return default

    def boolean(self, name: str) -> bool:
        value = self.text(name, "0").lower()
        if value not in _BOOLEANS:
            self.problems.append(f"{name} is {value!r}: it must be one of {', '.join(_BOOLEANS)}")
        return _BOOLEANS.get(value, False)

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.text(name, default).upper()
        if value not in choices:
            self.problems.append(f"{name} is {value!r}: it must be one of {', '.join(choices)}")
        return value

    def url(self, name: str, default: str, schemes: tuple[str, ...]) -> str:
        value = self.text(name, default)
        if urlsplit(value).scheme not in schemes:
            # The value itself may hold a password, so it is not repeated.
            starts = ", ".join(f"{scheme}://" for scheme in schemes)
            self.problems.append(f"{name} must be an address that starts with one of {starts}")
        return value


def read(environ: Mapping[str, str]) -> Env:
    """Read every name that Allot knows.

    Raises:
        EnvError: names are missing, unknown or hold values that cannot be used.
    """
    reader = _Reader(environ)
    ours = {name for name in environ if name.startswith("ALLOT_")}
    for name in sorted(ours - KNOWN_NAMES):
        reader.problems.append(f"{name} is not a name that Allot knows; is it misspelt?")
    var = reader.path("ALLOT_VAR", REPOSITORY / "var")
    run = _run_folder(reader, var)
    host = reader.text("ALLOT_HOST", "127.0.0.1")
    port = reader.integer("ALLOT_PORT", 8000, 1, 65535)
    public_url = reader.url("ALLOT_PUBLIC_URL", _own_url(host, port), ("http", "https"))
    own_database = not environ.get("ALLOT_DATABASE_URL")
    own_redis = not environ.get("ALLOT_REDIS_URL")
    if own_redis and not own_database:
        reader.problems.append("ALLOT_REDIS_URL is missing: it goes with ALLOT_DATABASE_URL")
    env = Env(
        var=var,
        run=run,
        host=host,
        port=port,
        public_url=public_url.rstrip("/"),
        database_url=reader.url(
            "ALLOT_DATABASE_URL", database_socket_url(run), ("postgresql", "postgres")
        ),
        redis_url=reader.url("ALLOT_REDIS_URL", redis_socket_url(run), ("redis", "rediss", "unix")),
        has_embedded_database=own_database,
        has_embedded_redis=own_redis,
        secret_key=_secret_key(reader, var, may_be_missing=own_database),
        debug=reader.boolean("ALLOT_DEBUG"),
        allowed_hosts=_allowed_hosts(reader, host, public_url),
        workload_python=reader.path(
            "ALLOT_WORKLOAD_PYTHON", REPOSITORY / ".venv-workload" / "bin" / "python"
        ),
        log_level=reader.choice("ALLOT_LOG_LEVEL", "INFO", _LOG_LEVELS),
        raw_sample_hours=reader.integer("ALLOT_RAW_SAMPLE_HOURS", 48, 24, 168),
        mail_url=_mail_url(reader),
        mail_from=_mail_from(reader, public_url),
    )
    if reader.problems:
        raise EnvError(reader.problems)
    return env


def _own_url(host: str, port: int) -> str:
    shown = "localhost" if host in ("0.0.0.0", "::") else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _mail_url(reader: _Reader) -> str:
    if not reader.text("ALLOT_MAIL_URL", ""):
        return ""
    url = reader.url("ALLOT_MAIL_URL", "", ("smtp", "smtp+tls", "smtps"))
    try:
        is_usable = bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        reader.problems.append("ALLOT_MAIL_URL must name a host, as smtp://mail.example:25 does")
        return ""
    return url


def _mail_from(reader: _Reader, public_url: str) -> str:
    address = reader.text("ALLOT_MAIL_FROM", f"allot@{urlsplit(public_url).hostname}")
    if not re.fullmatch(r"[^@\s<>]+@[^@\s<>]+", address):
        reader.problems.append(
            f"ALLOT_MAIL_FROM is {address!r}: it must be an address such as allot@example.org"
        )
    return address


def _run_folder(reader: _Reader, var: Path) -> Path:
    run = reader.path("ALLOT_RUN", default_run(var))
    size = len(os.fsencode(run))
    if size > MAX_RUN_PATH_BYTES:
        reader.problems.append(
            f"ALLOT_RUN is {str(run)!r}, {size} bytes: Unix sockets below it need a path of at "
            f"most {MAX_RUN_PATH_BYTES} bytes"
        )
    return run


def _secret_key(reader: _Reader, var: Path, *, may_be_missing: bool) -> str:
    """Take the key from the environment, else from the data folder.

    Before the first ``manage.py up`` there is none; commands that need no lasting key then get
    one that ends with their process.
    """
    key = reader.text("ALLOT_SECRET_KEY", "")
    try:
        key = key or secret_key_file(var).read_text().strip()
    except FileNotFoundError:
        key = secrets.token_urlsafe(MIN_SECRET_KEY_CHARS) if may_be_missing else ""
    except OSError as error:
        reader.problems.append(f"ALLOT_SECRET_KEY is missing, and its file is unreadable: {error}")
        return ""
    if not key:
        reader.problems.append("ALLOT_SECRET_KEY is missing: it goes with ALLOT_DATABASE_URL")
    elif len(key) < MIN_SECRET_KEY_CHARS:
        reader.problems.append(
            f"ALLOT_SECRET_KEY has {len(key)} characters: it needs {MIN_SECRET_KEY_CHARS} or more"
        )
    return key


def _allowed_hosts(reader: _Reader, host: str, public_url: str) -> tuple[str, ...]:
    """List the names by which browsers may ask for us; the loopback's always among them."""
    named = [part.strip() for part in reader.text("ALLOT_ALLOWED_HOSTS", "").split(",")]
    hosts = ["localhost", "127.0.0.1", "[::1]", *filter(None, named)]
    if host not in ("0.0.0.0", "::", "::1"):
        hosts.append(host)
    if public_host := urlsplit(public_url).hostname:
        hosts.append(public_host)
    return tuple(dict.fromkeys(hosts))

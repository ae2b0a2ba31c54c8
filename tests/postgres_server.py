"""A PostgreSQL server of the tests' own, which may be killed."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = Path("/usr/lib/postgresql")
PASSWORD = "only/for@these tests"
STARTING_S = 60


def find_programs():
    """Give the folder of initdb and postgres, or None."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    newest = sorted(PROGRAMS.glob("*/bin"), key=lambda path: int(path.parent.name))
    return newest[-1] if newest else None


class PostgresServer:
    """A server in a temporary folder, with a Unix socket and a port of the loopback device.

    Over the port it asks for a password. Its databases sort by a language, which records must not.
    """

    def __init__(self, programs):
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="tinytorch-postgres-"))
        self._as_user = []
        if os.geteuid() == 0:
            # The server refuses to be root.
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
            self._as_user = ["setpriv", *ids, "--inh-caps=-all"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._initialize()
        self.process = None
        self.start()

    def _initialize(self):
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        settings = ("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={password}")
        language = ("--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US")
        self._run("initdb", "-D", self.folder / "data", "-U", "owner", *settings, *language)

    def _run(self, program, *arguments):
        command = [*self._as_user, self.programs / program, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, cwd="/")
        assert ran.returncode == 0, ran.stderr

    def start(self):
        """Start the server, and wait until it answers.

        It refuses as long as a process of the one that was killed still ends: then again.
        """
        deadline = time.monotonic() + STARTING_S
        self._launch()
        while not self._answers():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.05)
            if self.process.poll() is not None:
                self._launch()

    def _launch(self):
        options = {
            "unix_socket_directories": self.folder,
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "max_connections": 120,
            # What a killed process has written is with the system; only a cut of power needs more.
            "fsync": "off",
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [*self._as_user, self.programs / "postgres", "-D", self.folder / "data", *settings],
            stdout=log,
            stderr=log,
            cwd="/",
        )
        log.close()

    def _answers(self):
        import psycopg

        try:
            psycopg.connect(self.address("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self):
        """Kill the server as the system does when memory runs out: without a word."""
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True
        ).stdout.split()
        for each in (self.process.pid, *map(int, children)):
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def stop(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def address(self, database, *, user="owner"):
        """Give an URL by the socket, which needs no password."""
        return f"postgresql://{user}@/{database}?host={self.folder}&port={self.port}"

    def network_address(self, database, *, user="owner", password=PASSWORD):
        """Give an URL by the port, with a password in it."""
        from urllib.parse import quote

        place = f"127.0.0.1:{self.port}/{database}"
        return f"postgresql://{user}:{quote(password, safe='')}@{place}"

    def new_database(self):
        """Create an empty database and give its name."""
        import psycopg

        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

"""Two connected network namespaces: two machines on one kernel. Only root can create them."""

import os
import shutil
import subprocess
from pathlib import Path

NET = "10.77.0"


class Missing(Exception):
    """No namespaces can be created here; the message gives the reason."""


class Machine:
    """A namespace with an address and a private folder, which the other machine does not see."""

    def __init__(self, name: str, number: int, folder: Path):
        self.name, self.address, self.folder = f"sp-{name}-{os.getpid()}", f"{NET}.{number}", folder
        self.hidden: Path | None = None
        folder.mkdir(parents=True)
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")

    @property
    def run(self) -> tuple[str, ...]:
        """Prefix of a command on this machine. If set, `hidden` is covered by an empty disk."""
        inside = ("ip", "netns", "exec", self.name)
        if self.hidden is None:
            return inside
        script = 'mount -t tmpfs none "$0" && exec "$@"'
        return (*inside, "unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(self.hidden))

    def end(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.name], capture_output=True)


def two(folder: Path) -> tuple[Machine, Machine]:
    """Two machines that can only reach each other. Raises Missing."""
    if os.getuid() != 0:
        raise Missing("only root may make network namespaces")
    for program in ("ip", "unshare"):
        if not shutil.which(program):
            raise Missing(f"no `{program}` here; on Debian: apt-get install iproute2 util-linux")
    machines: list[Machine] = []
    try:
        machines += [Machine("a", 1, folder / "first")]
        machines += [Machine("b", 2, folder / "second")]
        interfaces = [f"va{os.getpid()}", f"vb{os.getpid()}"]
        _ip("link", "add", interfaces[0], "type", "veth", "peer", "name", interfaces[1])
        for machine, interface in zip(machines, interfaces, strict=True):
            _ip("link", "set", interface, "netns", machine.name)
            _ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", interface)
            _ip("-n", machine.name, "link", "set", interface, "up")
    except BaseException:
        for machine in machines:
            machine.end()
        raise
    machines[0].hidden, machines[1].hidden = machines[1].folder, machines[0].folder
    return machines[0], machines[1]


def _ip(*arguments: str) -> None:
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if result.returncode:
        raise Missing(f"`ip {' '.join(arguments)}` does not work here: {result.stderr.strip()}")

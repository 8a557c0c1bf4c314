"""Measure memory and CPU of the container that an agent runs in.

Main type: ``ResourceReader``, which reads cgroup v1, cgroup v2 and ``/proc``. Roots are arguments, so tests use
folders.

Invariants: a limit counts only if it is below the value of the machine. Page cache that can be dropped
(``inactive_file``) counts as free. A file that cannot be read means that there is no such limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from monolith.agent.environment import AgentEnvironment
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ConfigError

__all__ = ["ResourceReader"]


@dataclass(frozen=True, slots=True)
class _MemoryGroup:
    """Limit and use of one control group, in bytes."""

    limit: int
    usage: int
    inactive_file: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.usage + self.inactive_file)


class ResourceReader:
    """Reads memory and CPU of the own container.

    Args:
        environment: Gives MY_MEM_LIMIT and MY_CPU_LIMIT, which count where no control group has a limit.
        proc: Folder ``/proc``.
        cgroup: Folder ``/sys/fs/cgroup``.
        clock: Measures and waits between two CPU readings.
    """

    def __init__(
        self,
        environment: AgentEnvironment | None = None,
        *,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
        clock: Clock | None = None,
    ) -> None:
        self._environment = environment or AgentEnvironment()
        self._proc = proc
        self._cgroup = cgroup
        self._clock = clock or SystemClock()

    # --- memory ---

    def total_memory(self) -> int:
        """Return the bytes that the container may use."""
        machine = self._meminfo("MemTotal")
        limits = [group.limit for group in self._memory_groups() if group.limit < machine]
        if not limits and self._environment.host.memory_limit:
            limits = [self._environment.host.memory_limit]
        return min([machine, *limits])

    def available_memory(self) -> int:
        """Return the bytes that are free: the smallest over the machine and all limits of the container."""
        total = self._meminfo("MemTotal")
        free = [group.free for group in self._memory_groups() if group.limit < total]
        return min([self._meminfo("MemAvailable"), *free])

    # --- CPU ---

    def cpu_count(self) -> int:
        """Return the cores that the container may use, at least 1."""
        quotas = list(self._cpu_quotas())
        if quotas:
            return max(1, min(quotas))
        return self._environment.host.cpu_limit or os.cpu_count() or 1

    def cpu_percent(self, *, readings: int = 5, pause_s: float = 1.0) -> float:
        """Return the CPU use of the container in percent of one core, as the mean of several readings.

        Raises:
            ConfigError: No control group counts CPU time.
        """
        total = 0.0
        for _ in range(readings):
            used_s, at_s = self._cpu_seconds(), self._clock.monotonic_s()
            self._clock.sleep_s(pause_s)
            elapsed_s = self._clock.monotonic_s() - at_s
            total += round(100 * (self._cpu_seconds() - used_s) / elapsed_s, 2)
        return total / readings

    def machine_cpu_percent(self, *, pause_s: float = 1.0) -> float:
        """Return the CPU use of the machine over one pause, from 0 to 100."""
        idle, total = self._machine_ticks()
        self._clock.sleep_s(pause_s)
        new_idle, new_total = self._machine_ticks()
        if new_total <= total:
            return 0.0
        return min(100.0, max(0.0, 100 * (1 - (new_idle - idle) / (new_total - total))))

    # --- files ---

    @property
    def _is_v2(self) -> bool:
        return (self._cgroup / "cgroup.controllers").exists()

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yield the folder of the own control group and those above it."""
        root = self._cgroup if self._is_v2 else self._cgroup / controller
        path = Path(self._own_group(controller))
        for part in (path, *path.parents):
            yield root / str(part).lstrip("/")

    def _own_group(self, controller: str) -> str:
        for line in (_read(self._proc / "self" / "cgroup") or "").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if (self._is_v2 and number == "0" and not controllers) or controller in controllers.split(","):
                return path.strip() or "/"
        return "/"

    def _memory_groups(self) -> Iterator[_MemoryGroup]:
        limit_name, usage_name = (
            ("memory.max", "memory.current") if self._is_v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        for folder in self._folders("memory"):
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit and usage is not None:
                stat = _table(folder / "memory.stat")
                inactive = stat.get("inactive_file", 0) if self._is_v2 else stat.get("total_inactive_file")
                yield _MemoryGroup(limit, usage, inactive if inactive is not None else stat.get("inactive_file", 0))

    def _cpu_quotas(self) -> Iterator[int]:
        for folder in self._folders("cpu"):
            if self._is_v2:
                parts = (_read(folder / "cpu.max") or "").split()
                quota = int(parts[0]) if len(parts) == 2 and parts[0].isdigit() else None
                period = int(parts[1]) if quota is not None and parts[1].isdigit() else None
            else:
                quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
            if quota and period and quota > 0:
                yield quota // period

    def _cpu_seconds(self) -> float:
        for folder in self._folders("cpuacct"):
            if self._is_v2:
                micros = _table(folder / "cpu.stat").get("usage_usec")
                if micros is not None:
                    return micros / 1e6
            else:
                nanos = _number(folder / "cpuacct.usage")
                if nanos is not None:
                    return nanos / 1e9
        raise ConfigError(f"no control group below {str(self._cgroup)!r} counts CPU time; use machine_cpu_percent")

    def _meminfo(self, name: str) -> int:
        value = _table(self._proc / "meminfo").get(name)
        if value is None:
            raise ConfigError(
                f"{name} is missing in {str(self._proc / 'meminfo')!r}, expected a number of KiB; mount /proc"
            )
        return value * 1024

    def _machine_ticks(self) -> tuple[int, int]:
        first = (_read(self._proc / "stat") or "cpu 0 0 0 0").splitlines()[0].split()
        ticks = [int(value) for value in first[1:9]]
        return sum(ticks[3:5]), sum(ticks)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = (_read(path) or "").strip()
    return int(text) if text.removeprefix("-").isdigit() else None


def _table(path: Path) -> dict[str, int]:
    """Return the lines ``name value`` and ``name: value kB`` of a file."""
    table = {}
    for line in (_read(path) or "").splitlines():
        parts = line.replace(":", " ").split()
        if len(parts) >= 2 and parts[1].isdigit():
            table[parts[0]] = int(parts[1])
    return table

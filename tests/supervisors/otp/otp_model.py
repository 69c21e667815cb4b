"""OTP's supervisor in a few lines: one level, workers only, every restart within the period."""

from attrs import Factory, define


@define
class Row:
    id: str
    restart: str
    significant: bool
    running: bool = False


@define
class Model:
    """Says what happens, as ``+id``, ``!id`` (a failed start) and ``-id reason``; ``failing`` counts starts to come."""

    strategy: str
    intensity: int
    policy: str
    rows: list[Row] = Factory(list)
    failing: dict[str, int] = Factory(dict)
    log: list[str] = Factory(list)
    restarts: int = 0
    gone: bool = False

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.id == name), None)

    def start(self, row: Row) -> bool:
        row.running = not self.failing.get(row.id)
        if not row.running:
            self.failing[row.id] -= 1
        self.log.append(f"{'+' if row.running else '!'}{row.id}")
        return row.running

    def stop(self, rows: list[Row]) -> None:
        for row in reversed(rows):
            if row.running:
                self.log.append(f"-{row.id} shutdown")
            row.running = False
            if row.restart == "temporary":
                self.rows.remove(row)

    def end(self) -> None:
        self.stop(list(self.rows))
        self.gone = True

    def ended(self, row: Row, reason: str) -> None:
        self.log.append(f"-{row.id} {reason}")
        row.running = False
        if row.restart == "permanent" or (row.restart == "transient" and reason == "crash"):
            self.bring_back(row)
            return
        if row.restart == "temporary":
            self.rows.remove(row)
        left = any(other.significant and other.running for other in self.rows)
        if row.significant and (self.policy == "any_significant" or (self.policy == "all_significant" and not left)):
            self.end()

    def bring_back(self, row: Row | None) -> None:
        while row is not None:
            self.restarts += 1
            if self.restarts > self.intensity:
                self.end()
                return
            first = {"one_for_all": 0, "rest_for_one": self.rows.index(row)}.get(self.strategy)
            group = [row] if first is None else self.rows[first:]
            self.stop(list(group))
            again = [member for member in group if member.restart != "temporary"]
            row = next((member for member in again if not self.start(member)), None)

"""Orders of a shop. It has one defect that a reviewer should find."""

import sqlite3


def find_orders(db: sqlite3.Connection, customer: str) -> list[tuple[int, str]]:
    rows = db.execute(f"SELECT id, goods FROM orders WHERE customer = '{customer}'")
    return rows.fetchall()


def add_order(db: sqlite3.Connection, customer: str, goods: str) -> None:
    db.execute("INSERT INTO orders (customer, goods) VALUES (?, ?)", (customer, goods))

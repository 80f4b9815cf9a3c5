#!/usr/bin/env python3
"""Writes an access log of a made-up shop in nginx's combined format.

The same arguments give the same log. It has what real logs have: IPv6, users, escapes, lines of
connections that sent no HTTP, requests that are logged late, bots, a scraper, and a partner that sends
its orders in bursts.

    scripts/generate-access-log.py --lines 1000000 --clients 20000 --hours 24 > access.log
"""

import argparse
import random
import sys
import time

PATHS = [
    ("GET", "/", 12), ("GET", "/products/{n}", 30), ("GET", "/search?q={w}&page={d}", 18),
    ("GET", "/static/app.js", 10), ("GET", "/cart", 8), ("POST", "/cart/items", 6),
    ("POST", "/login", 4), ("POST", "/checkout", 2), ("GET", "/api/v1/stock/{n}", 10),
]
WORDS = ["shoes", "red%20hat", "socks", "caf%C3%A9", "lamp"]
AGENTS = [
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15",
    r"Mozilla/5.0 (compatible; \x22ExampleBot\x22/2.1; +https://bot.example)",
    "curl/8.9.1", "-",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=20_000)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--begin", type=int, default=1_790_726_400, help="the first second, since 1970")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    span = args.hours * 3600
    clients = [
        f"2001:db8:{n >> 8:x}:{n & 255:x}::{chance.randrange(1, 9)}" if n % 7 == 0
        else f"198.51.{n >> 8 & 255}.{n & 255}" if n < 65_536 else f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"
        for n in range(args.clients)
    ]
    weights = [1 / (rank + 20) ** 0.7 for rank in range(args.clients)]
    paths, path_weights = [p[:2] for p in PATHS], [p[2] for p in PATHS]

    events = []
    # A partner sends 80 orders within half a minute, every quarter of an hour.
    for quarter in range(int(span // 900)):
        for order in range(80):
            at = quarter * 900 + 120 + order * 0.35
            events.append((at, "203.0.113.40", "partner", "POST", "/api/v1/orders", "partner-sync/3.2"))
    # Somebody copies all products for an hour, twice a second.
    for step in range(min(int(span // 4), 3600) * 2):
        at = span * 0.55 + step / 2 + chance.random() / 4
        events.append((at, "203.0.113.99", "-", "GET", f"/products/{step}", "python-requests/2.32"))
    # Somebody tries passwords for ten minutes.
    for step in range(min(int(span // 10), 600)):
        at = span * 0.3 + step + chance.random() / 2
        events.append((at, "203.0.113.77", "-", "POST", "/login", "Go-http-client/1.1"))
    events = [event for event in events if event[0] < span][: args.lines]
    visitors = max(args.lines - len(events), 0)
    for address in chance.choices(clients, weights, k=visitors):
        # More in the afternoon than at night.
        at = (chance.betavariate(2.2, 1.8)) * span
        method, path = chance.choices(paths, path_weights)[0]
        path = path.format(n=chance.randrange(5000), w=chance.choice(WORDS), d=chance.randrange(9))
        user = "-" if chance.random() < 0.8 else f"user{chance.randrange(900)}"
        events.append((at, address, user, method, path, chance.choice(AGENTS)))
    events.sort(key=lambda event: event[0])

    out, last, stamp = [], None, ""
    for at, address, user, method, path, agent in events:
        # A line is written when its request ends: some come late.
        second = args.begin + int(at) - (chance.randrange(1, 5) if chance.random() < 0.02 else 0)
        if second != last:
            stamp, last = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(second)), second
        if chance.random() < 0.0005:
            out.append(f'{address} - - [{stamp}] "\\x16\\x03\\x01\\x02" 400 157 "-" "-"\n')
            continue
        out.append(
            f'{address} - {user} [{stamp}] "{method} {path} HTTP/1.1" 200 {chance.randrange(200, 9000)} "-" "{agent}"\n'
        )
        if len(out) > 10_000:
            sys.stdout.writelines(out)
            out.clear()
    sys.stdout.writelines(out)


if __name__ == "__main__":
    main()

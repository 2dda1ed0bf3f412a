#!/usr/bin/env python3
"""Predicts the cycles of a tile of keys in mla_decode's kernel for Hopper, from events of one multiprocessor: the
products of both groups of consumers, the weights that they hand over, and the keys on their way from the L2 cache.

usage: tests/bench/mla_decode_tiles.py

What a load takes is a latency and a share of L2's rate. One measured figure cannot tell them apart, so each line takes
another latency, and the rate with which the tile takes what an H200 measured without pairs. Clusters, producers that
decode, and the kernel with FP8 products are then predicted with the same."""

import heapq
import itertools

MEASURED_TILE = 5220 - 990  # cycles at 128 rows of 4,096 positions; 990 are a tile's part of the end of its split
MEASURED_FP8_TILE = 7500 - 990
PAIR_CYCLES = 200  # to the other block: an estimate
STORING = 150  # from the last store of decoded keys to its mbarrier: an estimate
WEIGHING, RESCALING, HANDING_OVER = 450, 60, 40  # of the 700 that softmax and barriers take
SCORES, VALUES = 32, 128  # cycles of a matrix instruction, m64n64k16 and m64n256k16
LOADS, LOAD_BYTES, STAGES = 3, 3 * 64 * 64 * 2, 2
READERS = ((0,), (0, 1), (0, 1))  # the groups whose P V reads a load
TILES = 400

# FP8 products. Bytes of shared memory that a tile's products read: of scores and RoPE parts both operands, of P V the
# codes of weights; and what else: keys arrive, are read once more as values, weights are stored, scales are read. It
# moves 128 bytes a cycle; a product that takes longer than its matrix instruction for that waits.
F8_READ = 20 * 4096 + 32 * 1024
F8_OTHER = 64 * 656 + 32 * 1024 + 16 * 1024 + 2 * 4 * 4 * 1024
F8_TENSOR_CYCLES = 16 * 32 + 4 * 32 + 32 * 16
F8_SLOWER = (F8_READ + F8_OTHER) / 128 / F8_TENSOR_CYCLES
F8_SCORES, F8_VALUES = 32 * F8_SLOWER, 16 * F8_SLOWER  # m64n64k32, m64n32k32
F8_LOAD_BYTES = (64 * (256 + 16), 64 * (256 + 128))
# Instructions of a warp, which shares its scheduler with one of the other group: each takes 1.5 cycles.
F8_PROMOTING, F8_WEIGHING, F8_TURNING, F8_ADDING = 1.5 * 86, 1.5 * 430, 1.5 * 110, 1.5 * 18
F8_STAGES, F8_PARTS = 3, 8


class Events:
    """Processes are generators of ("sleep", cycles) and ("wait", event)."""

    def __init__(self):
        self.now = 0.0
        self.queue = []
        self.numbers = itertools.count()
        self.waiting = {}  # by event; None: it has happened

    def at(self, time, action):
        heapq.heappush(self.queue, (time, next(self.numbers), action))

    def fire(self, event):
        for action in self.waiting.get(event) or ():
            self.at(self.now, action)
        self.waiting[event] = None

    def spawn(self, process):
        def step():
            for what, value in process:
                if what == "sleep":
                    return self.at(self.now + value, step)
                if self.waiting.setdefault(value, []) is not None:
                    return self.waiting[value].append(step)
            return None
        step()

    def run(self):
        while self.queue:
            self.now, _, action = heapq.heappop(self.queue)
            action()


class TensorCores:
    """Take turns between the groups, an instruction each."""

    def __init__(self, events):
        self.events = events
        self.queues = ([], [])
        self.last, self.busy = 1, False

    def start(self, group, count, cycles, event):
        self.queues[group].extend([(cycles, None)] * (count - 1) + [(cycles, event)])
        self.advance()

    def advance(self):
        for group in (1 - self.last, self.last):
            if not self.busy and self.queues[group]:
                cycles, event = self.queues[group].pop(0)
                self.busy, self.last = True, group
                self.events.at(self.events.now + cycles, lambda: self.end(event))

    def end(self, event):
        self.busy = False
        if event is not None:
            self.events.fire(event)
        self.advance()


class Block:
    def __init__(self, latency, rate, blocks, decoding, alternate):
        self.events = Events()
        self.cores = TensorCores(self.events)
        self.latency = latency + (PAIR_CYCLES if blocks > 1 else 0)
        self.load_cycles = LOAD_BYTES / rate / blocks if rate else 0
        self.decoding = decoding / blocks
        self.memory_free = 0.0
        self.releases = {}
        for producer in [self.decode()] if decoding else [self.load(stage) for stage in range(STAGES)]:
            self.events.spawn(producer)
        for group in (0, 1):
            self.events.spawn(self.consume(group, alternate))

    # ---- the producers ----

    def load(self, stage):
        for tile in range(stage, TILES, STAGES):
            for load in range(LOADS):
                yield "wait", ("empty", tile - STAGES, load)
                self.memory_free = max(self.memory_free, self.events.now) + self.load_cycles
                self.arrive(self.memory_free, tile, load)

    def arrive(self, sent, tile, load):
        self.events.at(sent + self.latency, lambda: self.events.fire(("full", tile, load)))

    def decode(self):
        for tile in range(TILES):
            for load in range(LOADS):
                yield "wait", ("empty", tile - STAGES, load)
                yield "sleep", self.decoding / LOADS
            for load in range(LOADS):
                self.arrive(self.events.now, tile, load)

    # ---- the consumers ----

    def release(self, group, tile):
        for load, readers in enumerate(READERS):
            if group in readers:
                self.releases[tile, load] = self.releases.get((tile, load), 0) + 1
                if self.releases[tile, load] == len(readers):
                    self.events.fire(("empty", tile, load))

    def scores(self, group, tile, behind=None):
        """`behind`: the tile whose P V is in flight."""
        for load in range(LOADS):
            yield "wait", ("full", tile, load)
            self.cores.start(group, 12, SCORES, ("scores", tile, load))
            if load == 0 and behind is not None:
                yield from self.finish_values(group, behind)

    def weigh(self, tile):
        yield "sleep", WEIGHING
        self.events.fire(("weighed", tile))

    def add_values(self, group, tile):
        yield "wait", ("weighed", tile)
        yield "sleep", RESCALING + HANDING_OVER
        self.cores.start(group, 4, VALUES, ("values", tile, group))

    def finish_values(self, group, tile):
        yield "wait", ("values", tile, group)
        self.release(group, tile)

    def consume(self, group, alternate):
        """Two tiles at a time. The leader weighs the first and takes the second's weights, the follower the reverse."""
        for pair in range(TILES // 2):
            first, leads = 2 * pair, group == (pair % 2 if alternate else 0)
            if leads:
                if pair == 0:
                    yield from self.scores(group, first)
                yield "wait", ("scores", first, LOADS - 1)
                yield from self.weigh(first)
                yield from self.add_values(group, first)
                yield from self.finish_values(group, first)
            else:
                yield from self.scores(group, first + 1)
                yield "wait", ("scores", first + 1, LOADS - 1)
                yield from self.add_values(group, first)
                yield from self.weigh(first + 1)
                yield from self.finish_values(group, first)
            yield from self.add_values(group, first + 1)
            if leads != alternate and first + 2 < TILES:  # leads the next two
                yield from self.scores(group, first + 2, behind=first + 1)
            else:
                yield from self.finish_values(group, first + 1)


class Fp8Block(Block):
    """FP8 products: a group weighs every second tile, then adds that before it and its own."""

    def load(self, stage):
        for tile in range(TILES) if stage == 0 else ():
            for load, load_bytes in enumerate(F8_LOAD_BYTES):
                yield "wait", ("empty", tile - F8_STAGES, load)
                self.memory_free = max(self.memory_free, self.events.now) + self.load_cycles * load_bytes / LOAD_BYTES
                self.arrive(self.memory_free, tile, load)

    def release(self, group, tile):
        self.releases[tile] = self.releases.get(tile, 0) + 1
        if self.releases[tile] == 2:
            for load in range(len(F8_LOAD_BYTES)):
                self.events.fire(("empty", tile, load))

    def scores(self, group, tile, behind=None):
        for part in range(5):  # four groups of columns, the RoPE part
            yield "wait", ("full", tile, part // 2 if part < 4 else 1)
            self.cores.start(group, 4, F8_SCORES, ("scores", tile, part))
            yield "wait", ("scores", tile, part)
            yield "sleep", F8_PROMOTING if part < 4 else F8_PROMOTING / 2

    def add_values(self, group, tile):
        yield "wait", ("weighed", tile)
        yield "sleep", F8_TURNING + HANDING_OVER
        self.release(group, tile)
        for part in range(F8_PARTS + 1):
            if part < F8_PARTS:
                self.cores.start(group, 2, F8_VALUES, ("values", tile, group, part))
            if part > 0:
                yield "wait", ("values", tile, group, part - 1)
                yield "sleep", F8_ADDING

    def consume(self, group, alternate):
        for tile in range(group, TILES, 2):
            yield from self.scores(group, tile)
            if tile > 0:
                yield "wait", ("weighed", tile - 1)
            yield "sleep", F8_WEIGHING
            self.events.fire(("weighed", tile))
            if tile > 0:
                yield from self.add_values(group, tile - 1)
            yield from self.add_values(group, tile)
        if (TILES - 1) % 2 != group:
            yield from self.add_values(group, TILES - 1)


def cycles(latency, rate, blocks=1, decoding=0, alternate=False, block_type=Block):
    block = block_type(latency, rate, blocks, decoding, alternate)
    for load in range(LOADS):
        for tile in range(-F8_STAGES, 0):
            block.events.fire(("empty", tile, load))
    block.events.run()
    return block.events.now / TILES


def fitted(low, high, measured, predict):
    """The value between low, whose prediction is too long, and high with which it is what was measured."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if predict(middle) > measured else (low, middle)
    return low


def main():
    print("| latency, cycles | L2, bytes a cycle | one block | leaders in turn | pairs | pairs, leaders in turn |")
    print("|---|---|---|---|---|---|")
    for latency in (600, 900, 1500, 2300):
        rate = fitted(5, 200, MEASURED_TILE, lambda value, latency=latency: cycles(latency, value))
        row = [cycles(latency, rate, blocks, alternate=alternate) for blocks in (1, 2) for alternate in (False, True)]
        print(f"| {latency:,} | {rate:.1f} | " + " | ".join(f"{value:,.0f}" for value in row) + " |")
    print("\n| FP8 products: latency, cycles | one block | pairs |")
    print("|---|---|---|")
    for latency in (600, 900, 1500, 2300):
        rate = fitted(5, 200, MEASURED_TILE, lambda value, latency=latency: cycles(latency, value))
        row = [cycles(latency, rate, blocks, block_type=Fp8Block) for blocks in (1, 2)]
        print(f"| {latency:,} | " + " | ".join(f"{value:,.0f}" for value in row) + " |")
    print("\n| FP8 rows: decoding, cycles | one block | pairs |")
    print("|---|---|---|")
    decoding = fitted(9000, 2000, MEASURED_FP8_TILE, lambda value: cycles(STORING, 0, decoding=value))
    row = [decoding, *(cycles(STORING, 0, blocks, decoding) for blocks in (1, 2))]
    print("| " + " | ".join(f"{value:,.0f}" for value in row) + " |")


if __name__ == "__main__":
    main()

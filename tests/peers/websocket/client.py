"""Tries one thing over WebSocket with the package `websockets`: client.py WHAT URL SERVER.

URL is that of Tidegate, SERVER that of server.py behind it. Exits with 0, or says what is wrong.
"""
import asyncio
import json
import os
import sys
import time
import urllib.request

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

what, url, server = sys.argv[1:]
PLAIN = {'compression': None, 'max_size': 4 << 20, 'proxy': None, 'open_timeout': 5, 'close_timeout': 2}
DEFLATE = {**PLAIN, 'compression': 'deflate'}
PLENTY = 5


def to(path, options=PLAIN):
    return connect(url + path, **options)


async def state():
    def read():
        with urllib.request.urlopen(server + '/state', timeout=5) as reply:
            return json.load(reply)
    return await asyncio.to_thread(read)


async def ended_as(path, code):
    """Waits until the server saw the one socket of this path end, and in which way."""
    until = time.monotonic() + 1
    while True:
        seen = [it['code'] for it in (await state())['ended'] if it['path'] == path]
        if seen:
            assert seen == [code], seen
            return
        assert time.monotonic() < until, 'the server saw no end of %s within 1 s' % path
        await asyncio.sleep(0.02)


async def echoes(socket, message):
    await socket.send(message)
    came = await asyncio.wait_for(socket.recv(), PLENTY)
    assert came == message, (type(came), len(came), len(message))


async def messages():
    async with to('/echo') as socket:
        assert socket.protocol.extensions == []
        for message in ('', 'x', 'Zoë ✓', 'y' * 125, 'y' * 126, 'y' * 65536, b'', b'\x00\xff' * 3, bytes(range(256)) * 300):
            await echoes(socket, message)


async def megabytes():
    noise = os.urandom(1_000_000)
    for options in (PLAIN, DEFLATE):
        async with to('/echo', options) as socket:
            await echoes(socket, noise)
            await echoes(socket, 'tide ' * 200_000)
            # Both ways at once.
            sending = asyncio.gather(*(socket.send(noise) for _ in range(4)))
            for _ in range(4):
                assert await asyncio.wait_for(socket.recv(), PLENTY) == noise
            await sending


async def pings():
    async with to('/echo') as socket:
        for payload in (b'', b'here?', b'x' * 125):
            await asyncio.wait_for(await socket.ping(payload), 2)
        # Also while a message is half sent.
        async def slowly():
            yield 'half'
            await asyncio.wait_for(await socket.ping(b'between'), 2)
            yield ' and half'
        await socket.send(slowly())
        assert await socket.recv() == 'half and half'
    async with to('/ping') as socket:
        assert await asyncio.wait_for(socket.recv(), PLENTY) == 'there'


async def fragments():
    async with to('/frames') as socket:
        await socket.send(iter(['a' * 10, 'b' * 70_000, '', 'c']))
        # The last frame of a message in pieces is empty.
        assert await socket.recv() == '5 frames of 70011'
    async with to('/pieces') as socket:
        frames = [frame async for frame in socket.recv_streaming()]
        assert [frame for frame in frames if frame] == ['one ', 'two ', 'three'], frames


async def closes():
    socket = await to('/echo')
    await echoes(socket, 'before')
    began = time.monotonic()
    await socket.close(4001, 'done')
    assert (socket.close_code, time.monotonic() - began < 1) == (4001, True), socket.close_code
    await ended_as('/echo', 4001)
    socket = await to('/close')
    try:
        await asyncio.wait_for(socket.recv(), PLENTY)
        raise AssertionError('a message')
    except ConnectionClosed as closed:
        assert (closed.rcvd.code, closed.rcvd.reason) == (4002, 'enough'), closed
    await ended_as('/close', 4002)


async def deflate():
    async with to('/echo', DEFLATE) as socket:
        names = [extension.name for extension in socket.protocol.extensions]
        assert names == ['permessage-deflate'], names
        for message in ('tide' * 10_000, b'gate' * 10_000, 'x', ''):
            await echoes(socket, message)


async def refused():
    try:
        await to('/refused')
        raise AssertionError('a socket')
    except InvalidStatus as answer:
        assert (answer.response.status_code, answer.response.body) == (403, b'not here'), answer.response


async def fifty():
    """The test lets 50 calls run at once."""
    sockets = await asyncio.gather(*(to('/echo') for _ in range(50)))
    await asyncio.gather(*(echoes(socket, 'socket %d' % at) for at, socket in enumerate(sockets)))
    more = asyncio.ensure_future(asyncio.wait_for(to('/echo'), PLENTY))
    done, _ = await asyncio.wait([more], timeout=0.3)
    assert not done, 'the 51st socket did not wait'
    assert (await state())['open'] == 50
    began = time.monotonic()
    await sockets.pop().close(4003)
    socket = await more
    took = time.monotonic() - began
    assert took < 1, took
    await echoes(socket, 'the 51st')
    assert (await state())['open'] == 50
    await asyncio.gather(*(it.close() for it in [socket, *sockets]))
    # A socket is closed for its client before the server has noted it.
    ends = time.monotonic() + PLENTY
    while (await state())['open'] != 0:
        assert time.monotonic() < ends, await state()
        await asyncio.sleep(0.01)


asyncio.run(globals()[what]())

"""A WebSocket server of the package `websockets`: prints its port, then one line for each socket that ended.

The path says what it does: /echo answers each message as it came, /pieces sends a message in three frames, /ping asks its
client, /close ends with 4002. /page is a page for a browser, and /state says which sockets are open and how others ended.
"""
import asyncio
import json
import os
import sys

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

PAGE = '<!doctype html><title>sockets</title>'
opened = set()
ended = []


def say(**fields):
    print(json.dumps(fields, sort_keys=True), flush=True)


def page(connection, request):
    if request.path == '/page':
        reply = connection.respond(200, PAGE)
        del reply.headers['Content-Type']
        reply.headers['Content-Type'] = 'text/html'
        return reply
    if request.path == '/state':
        return connection.respond(200, json.dumps({'open': len(opened), 'ended': ended}))
    if request.path == '/refused':
        return connection.respond(403, 'not here')
    return None


async def talk(socket):
    path = socket.request.path
    if path == '/pieces':
        await socket.send(iter(['one ', 'two ', 'three']))
    if path == '/ping':
        await asyncio.wait_for(await socket.ping(b'there?'), 2)
        await socket.send('there')
    if path == '/close':
        await socket.close(4002, 'enough')
        return
    if path == '/frames':
        while True:
            frames = [frame async for frame in socket.recv_streaming()]
            await socket.send('%d frames of %d' % (len(frames), len(''.join(frames))))
    while True:
        await socket.send(await socket.recv())


async def handle(socket):
    opened.add(socket)
    try:
        await talk(socket)
    except ConnectionClosed:
        pass
    opened.discard(socket)
    one = {'path': socket.request.path, 'code': socket.close_code, 'why': socket.close_reason}
    ended.append(one)
    say(**one)


async def main():
    async with serve(handle, '127.0.0.1', 0, max_size=4 << 20, process_request=page) as server:
        say(ready=server.sockets[0].getsockname()[1])
        # The test closes our stdin.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        os._exit(0)


asyncio.run(main())

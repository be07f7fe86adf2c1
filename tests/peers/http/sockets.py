"""A WebSocket server, or a client of one, by the package `websockets`. The server prints its port and how each connection
ended; the client prints `ok`, or fails."""
import asyncio
import sys

import websockets
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve


async def echo(connection):
    try:
        async for message in connection:
            await connection.send(message)
    except websockets.ConnectionClosed:
        pass
    print('closed', connection.close_code, flush=True)


async def run_server():
    async with serve(echo, '127.0.0.1', 0, max_size=4 << 20) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().create_future()


async def talk(url, compression):
    async with connect(url, compression=compression, max_size=4 << 20, proxy=None) as client:
        for message in ('hello', b'\x00\xff', 'x' * (1 << 20), ['in ', 'three ', 'parts']):
            await client.send(message)
            wanted = ''.join(message) if isinstance(message, list) else message
            got = await client.recv()
            assert got == wanted, (len(got), len(wanted))
        await (await client.ping())
        await client.close(4001, 'the end')


async def run_client(url):
    await talk(url, None)
    await talk(url, 'deflate')
    await asyncio.gather(*(talk(url, None) for _ in range(20)))
    print('ok', flush=True)


asyncio.run(run_server() if sys.argv[1] == 'server' else run_client(sys.argv[1]))

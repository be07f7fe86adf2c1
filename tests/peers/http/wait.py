"""Asks for one answer after the other with one library of Python, for tests/it/signs_of_life.

    wait.py requests|urllib|httpx|aiohttp METHOD=URL...

Prints a line of JSON for each: the status and the body, or the error. POST has a small body. With "!" behind the method, the
client does not say who it is.
"""
import asyncio
import json
import sys
import urllib.request

LONGEST = 20


def by_requests(method, url, agent):
    import requests
    with requests.Session() as session:
        reply = session.request(method, url, data=body_of(method), headers=agent, timeout=LONGEST)
        return reply.status_code, reply.text


def by_urllib(method, url, agent):
    request = urllib.request.Request(url, body_of(method), agent, method=method)
    with urllib.request.urlopen(request, timeout=LONGEST) as reply:
        return reply.status, reply.read().decode()


def by_httpx(method, url, agent):
    import httpx
    with httpx.Client(timeout=LONGEST) as client:
        reply = client.request(method, url, content=body_of(method), headers=agent)
        return reply.status_code, reply.text


def by_aiohttp(method, url, agent):
    import aiohttp

    async def asking():
        timeout = aiohttp.ClientTimeout(total=LONGEST)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.request(method, url, data=body_of(method), headers=agent) as reply:
                return reply.status, await reply.text()
    return asyncio.run(asking())


def body_of(method):
    return b'{"name":"box"}' if method == 'POST' else None


ASK = {'requests': by_requests, 'urllib': by_urllib, 'httpx': by_httpx, 'aiohttp': by_aiohttp}


def main():
    library, *asks = sys.argv[1:]
    for ask in asks:
        method, url = ask.split('=', 1)
        try:
            status, body = ASK[library](method.rstrip('!'), url, {'User-Agent': 'any'} if '!' in method else {})
            seen = {'status': status, 'body': body}
        except Exception as error:  # each library has its own
            seen = {'error': '%s: %s' % (type(error).__name__, error)}
        print(json.dumps(seen), flush=True)


main()

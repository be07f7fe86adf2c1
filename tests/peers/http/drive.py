"""Asks an HTTP service for everything in tests/it/real_clients.rs with one library of Python.

    drive.py requests|httpx|aiohttp URL ONE_AT_A_TIME KEPT DIRECT

Prints one line of JSON for each request: what came, or which error. The addresses are those of Tidegate, of one that lets
one call at a time through, of a listener for one connection, and of the service itself.
"""
import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

PERIOD = bytes(range(251))
# No request takes longer, unless it hangs.
LONGEST = 5


def pattern(length):
    return (PERIOD * (length // 251 + 1))[:length]


def summary(body):
    if len(body) <= 200:
        return body.decode('latin1')
    return '%d bytes %s' % (len(body), 'as sent' if body == pattern(len(body)) else 'that are wrong')


def pieces(body):
    for at in range(0, len(body), 10_000):
        yield body[at:at + 10_000]


class Requests:
    expects = False

    def __init__(self):
        import requests
        self.session = requests.Session()

    def ask(self, method, url, body=None, chunked=False, expect=False):
        data = pieces(body) if chunked else body
        reply = self.session.request(method, url, data=data, timeout=LONGEST, allow_redirects=False)
        return reply.status_code, reply.headers, reply.content


class Httpx:
    expects = False

    def __init__(self):
        import httpx
        self.client = httpx.Client(timeout=LONGEST)

    def ask(self, method, url, body=None, chunked=False, expect=False):
        reply = self.client.request(method, url, content=pieces(body) if chunked else body)
        return reply.status_code, reply.headers, reply.content


class Aiohttp:
    expects = True

    def __init__(self):
        import aiohttp
        self.loop = asyncio.new_event_loop()
        timeout = aiohttp.ClientTimeout(total=LONGEST)

        async def session():
            return aiohttp.ClientSession(timeout=timeout)
        self.session = self.loop.run_until_complete(session())

    def ask(self, method, url, body=None, chunked=False, expect=False):
        async def slowly():
            for piece in pieces(body):
                yield piece

        async def asking():
            data = slowly() if chunked else body
            sending = self.session.request(method, url, data=data, expect100=expect, allow_redirects=False)
            async with sending as reply:
                return reply.status, reply.headers, await reply.read()
        return self.loop.run_until_complete(asking())


LIBRARIES = {'requests': Requests, 'httpx': Httpx, 'aiohttp': Aiohttp}


def observe(name, asking):
    began = time.monotonic()
    try:
        status, body = asking()
        seen = {'status': status, 'body': body}
    except Exception as error:  # each library has its own
        seen = {'error': '%s: %s' % (type(error).__name__, error)}
    print(json.dumps({'name': name, 'ms': int((time.monotonic() - began) * 1000), **seen}), flush=True)


def main():
    library, url, one, kept, direct = sys.argv[1:]
    new = LIBRARIES[library]
    client = new()

    def body_of(*args, **more):
        status, _, body = client.ask(*args, **more)
        return status, summary(body)

    def head():
        status, fields, body = client.ask('HEAD', url + '/large')
        return status, '%d bytes of %s' % (len(body), fields['content-length'])

    def statuses(asked):
        right = [it for it in asked if (it[0], it[2]) == (200, b'small')]
        return 200, '%d of %d' % (len(right), len(asked))

    def waiting():
        with ThreadPoolExecutor(3) as threads:
            return statuses(list(threads.map(lambda _: new().ask('GET', one + '/slow'), range(3))))

    upload = pattern(300_000)
    observe('small', lambda: body_of('GET', url + '/small'))
    observe('large', lambda: body_of('GET', url + '/large'))
    observe('echo', lambda: body_of('POST', url + '/echo', b'{"name":"box","size":3}'))
    observe('upload_length', lambda: body_of('POST', url + '/upload', upload))
    observe('upload_chunks', lambda: body_of('POST', url + '/upload', upload, chunked=True))
    if new.expects:
        observe('upload_expect', lambda: body_of('POST', url + '/upload', upload, expect=True))
        observe('refused_expect', lambda: body_of('POST', url + '/refused', upload, expect=True))
    observe('head', head)
    observe('none', lambda: body_of('GET', url + '/none'))
    observe('chunked', lambda: body_of('GET', url + '/chunked'))
    observe('closed', lambda: body_of('GET', url + '/closed'))
    for status in (302, 404, 500, 503):
        observe('status_%d' % status, lambda: body_of('GET', url + '/status/%d' % status))
    observe('waiting', waiting)
    for name, at in (('early', url), ('early_direct', direct)):
        for _ in range(5):
            observe(name, lambda: body_of('POST', at + '/early', pattern(20_000_000)))
    for _ in range(3):
        observe('early_chunks', lambda: body_of('POST', url + '/early', pattern(20_000_000), chunked=True))
    client = new()
    observe('kept', lambda: statuses([client.ask('GET', kept + '/small') for _ in range(20)]))


main()

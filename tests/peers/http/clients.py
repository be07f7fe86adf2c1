"""Calls a service with requests, aiohttp or httpx, in each form of a message. Prints `ok`, or what is wrong."""
import asyncio
import http.client
import sys

LARGE = 5 << 20
BODY = b'b' * 300_000
name, base = sys.argv[1:]


def parts():
    for at in range(0, len(BODY), 50_000):
        yield BODY[at:at + 50_000]


async def async_parts():
    for part in parts():
        yield part


def expect(what, got, wanted):
    if got != wanted:
        sys.exit('%s: %s: %r instead of %r' % (name, what, got, wanted))


def with_session(session, chunks):
    """requests and httpx are called in the same way."""
    for _ in range(20):
        expect('small', session.get(base + '/small').text, 'hello')
    for path in ('/large', '/chunks', '/close'):
        expect(path, len(session.get(base + path).content), LARGE)
    expect('HEAD', session.head(base + '/large').headers['content-length'], str(LARGE))
    expect('204', session.get(base + '/empty').status_code, 204)
    if name != 'requests':
        # urllib3 takes 103 for the reply, also without a proxy.
        expect('103', session.get(base + '/hints').text, 'hello')
    expect('json', session.post(base + '/length', json={'a': 1}).status_code, 200)
    expect('upload', session.post(base + '/length', data=BODY).text if name == 'requests'
           else session.post(base + '/length', content=BODY).text, str(len(BODY)))
    expect('chunks up', chunks(session).text, str(len(BODY)))
    expect('early answer', (session.post(base + '/refuse', data=BODY) if name == 'requests'
                            else session.post(base + '/refuse', content=BODY)).status_code, 413)


async def with_aiohttp():
    import aiohttp
    async with aiohttp.ClientSession() as session:
        async def text(method, path, **options):
            async with session.request(method, base + path, **options) as reply:
                return reply.status, await reply.read()
        for _ in range(20):
            expect('small', await text('GET', '/small'), (200, b'hello'))
        for path in ('/large', '/chunks', '/close'):
            expect(path, len((await text('GET', path))[1]), LARGE)
        expect('204', (await text('GET', '/empty'))[0], 204)
        expect('103', (await text('GET', '/hints'))[1], b'hello')
        length = str(len(BODY)).encode()
        expect('upload', (await text('POST', '/length', data=BODY))[1], length)
        expect('chunks up', (await text('POST', '/length', data=async_parts()))[1], length)
        expect('expected', (await text('POST', '/length', data=BODY, expect100=True))[1], length)
        expect('early answer', (await text('POST', '/refuse', data=BODY))[0], 413)


if name == 'requests':
    import requests
    with_session(requests.Session(), lambda session: session.post(base + '/length', data=parts()))
elif name == 'httpx':
    import httpx
    with_session(httpx.Client(timeout=30), lambda session: session.post(base + '/length', content=parts()))
elif name == 'aiohttp':
    asyncio.run(with_aiohttp())
else:
    connection = http.client.HTTPConnection(base.split('//')[1])
    for path, length in (('/small', 5), ('/large', LARGE), ('/chunks', LARGE), ('/close', LARGE), ('/small', 5)):
        connection.request('GET', path)
        expect(path, len(connection.getresponse().read()), length)
    connection.request('POST', '/length', parts(), encode_chunked=True, headers={'Transfer-Encoding': 'chunked'})
    expect('chunks up', connection.getresponse().read(), str(len(BODY)).encode())
print('ok')

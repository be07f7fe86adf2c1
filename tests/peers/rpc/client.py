"""A real client of a kind: client.py xapi|openai|ethereum|mcp PORT COUNT. It makes COUNT calls of a slow function, one of another, and
prints what it met as JSON: the seconds of the slow ones, the answers, and how the last error looks, if there was one.

`administrator` logs in to xapi and starts COUNT virtual machines. `monitor` asks xapi in COUNT threads until its input ends: it
prints `ready` when all have logged in, and at the end how many calls were answered and how many failed. `clones` makes COUNT clones at
once with proxmoxer and waits for their tasks, as Terraform does; it prints how many succeeded. `starts` does the same with starts of xapi."""
import json
import os
import sys
import threading
import time


def met(slow, count, other):
    """Calls one function `count` times, and then another."""
    begun = time.monotonic()
    error = None
    for _ in range(count):
        try:
            slow()
        except Exception as raised:  # What the library makes of a refusal is what is tried.
            error = raised
    seconds = time.monotonic() - begun
    answer = other()
    shown = {'seconds': seconds, 'other': answer, 'error': error and type(error).__name__, 'text': str(error)}
    print(json.dumps(shown))


def xapi(port, count):
    import XenAPI

    session = XenAPI.Session(f'http://127.0.0.1:{port}')
    session.login_with_password('root', 'right', '1.0', 'tests')

    def other():
        task = getattr(session.xenapi, 'Async').VM.snapshot('OpaqueRef:vm', 'name')
        record = session.xenapi.task.get_record(task)
        return record['status']

    met(lambda: session.xenapi.VM.start('OpaqueRef:vm', False, False), count, other)
    session.xenapi.session.logout()


def administrator(port, count):
    import XenAPI

    session = XenAPI.Session(f'http://127.0.0.1:{port}')
    session.login_with_password('root', 'right', '1.0', 'console')
    begun = time.monotonic()
    for _ in range(count):
        session.xenapi.VM.start('OpaqueRef:vm', False, False)
    print(json.dumps({'seconds': time.monotonic() - begun}))
    session.xenapi.session.logout()


def monitor(port, count):
    import XenAPI

    logged_in = threading.Barrier(count + 1)
    answered, failed = [0] * count, [0] * count

    def ask(number):
        session = XenAPI.Session(f'http://127.0.0.1:{port}')
        session.login_with_password('monitor', 'right', '1.0', 'monitoring')
        logged_in.wait()
        while True:
            try:
                session.xenapi.VM.get_all_records()
                answered[number] += 1
                session.xenapi.host.get_all_records()
                answered[number] += 1
            except Exception as raised:
                print(raised, file=sys.stderr, flush=True)
                failed[number] += 1

    for number in range(count):
        threading.Thread(target=ask, args=(number,), daemon=True).start()
    logged_in.wait()
    print('ready', flush=True)
    sys.stdin.read()
    print(json.dumps({'answered': sum(answered), 'failed': sum(failed)}), flush=True)
    # Calls that wait are not waited for.
    os._exit(0)


def at_once(count, run):
    """Runs `run` in this many threads, and prints how many returned True and how long all took."""
    results = [None] * count

    def one(number):
        try:
            results[number] = run(number)
        except Exception as raised:
            results[number] = f'{type(raised).__name__}: {raised}'

    begun = time.monotonic()
    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = sorted({str(it) for it in results if it is not True})
    seconds = time.monotonic() - begun
    print(json.dumps({'succeeded': results.count(True), 'seconds': seconds, 'failed': failed}))


def clones(port, count):
    import proxmoxer
    import urllib3
    from proxmoxer.tools import Tasks

    urllib3.disable_warnings()

    def run(number):
        api = proxmoxer.ProxmoxAPI('127.0.0.1', port=port, user='root@pam', token_name='tests', token_value='secret',
                                   verify_ssl=False, timeout=60)
        upid = api.nodes('pve1').qemu(100).clone.post(newid=1000 + number)
        # The first poll is at once, and the others are as often as those of Terraform's provider, a twentieth of the time.
        status = Tasks.blocking_status(api, upid, timeout=20, polling_interval=0.05)
        return status['exitstatus'] == 'OK' or status['exitstatus']

    at_once(count, run)


def starts(port, count):
    import XenAPI

    def run(_):
        session = XenAPI.Session(f'http://127.0.0.1:{port}')
        session.login_with_password('root', 'right', '1.0', 'tests')
        task = getattr(session.xenapi, 'Async').VM.start('OpaqueRef:vm', False, False)
        while (status := session.xenapi.task.get_status(task)) == 'pending':
            time.sleep(0.03)
        return status == 'success' or status

    at_once(count, run)


def most_tasks(port, _):
    import XenAPI

    session = XenAPI.Session(f'http://127.0.0.1:{port}')
    session.login_with_password('root', 'right', '1.0', 'tests')
    print(session.xenapi.tests.most_tasks())


def openai(port, count):
    import openai

    client = openai.OpenAI(base_url=f'http://127.0.0.1:{port}/v1', api_key='sk-secret', max_retries=0)
    asked = [{'role': 'user', 'content': 'hello'}]

    def slow():
        with client.chat.completions.create(model='slow', messages=asked, stream=True) as stream:
            tokens = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
        assert len(tokens) == 10, tokens

    def other():
        return client.chat.completions.create(model='fast', messages=asked).usage.total_tokens

    met(slow, count, other)


def ethereum(port, count):
    from web3 import Web3

    web3 = Web3(Web3.HTTPProvider(f'http://127.0.0.1:{port}', exception_retry_configuration=None))

    def other():
        return web3.eth.block_number

    met(lambda: web3.eth.get_logs({'fromBlock': 1, 'toBlock': 2}), count, other)


def mcp(port, count):
    import anyio
    from mcp import Client

    async def run():
        async with Client(f'http://127.0.0.1:{port}/mcp') as client:
            begun = time.monotonic()
            error = None
            for _ in range(count):
                result = await client.call_tool('slow', {})
                if result.is_error:
                    error = result.content[0].text
            seconds = time.monotonic() - begun
            other = await client.call_tool('fast', {})
            shown = {'seconds': seconds, 'other': other.content[0].text, 'error': error and 'is_error', 'text': str(error)}
            print(json.dumps(shown))

    anyio.run(run)


globals()[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))

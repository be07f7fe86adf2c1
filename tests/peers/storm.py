"""Many calls at once, each by its own client, and the result of each."""
import threading
import time

import common


def storm(count, client):
    """Makes `count` calls of guest_get_info at once; client() makes the client of one."""
    results, lock, gate = {}, threading.Lock(), threading.Event()

    def one(userid):
        call = client()
        gate.wait()
        started = time.monotonic()
        try:
            reply = call('guest_get_info', userid)
            code = [reply['overallRC'], reply['modID'], reply['rc'], reply['rs']]
            # The answer of another call is as bad as none.
            if code == [0, None, 0, 0] and reply['output']['userid'] != userid:
                code, reply = None, {'errmsg': 'answer of ' + reply['output']['userid']}
            result = {'code': code, 'errmsg': reply['errmsg']}
        except Exception as error:
            result = {'code': None, 'errmsg': repr(error)}
        result['seconds'] = time.monotonic() - started
        with lock:
            results[userid] = result
    threads = [threading.Thread(target=one, args=('HRX%05d' % n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    gate.set()
    for thread in threads:
        thread.join()
    common.say(results=results, seconds=time.monotonic() - started)

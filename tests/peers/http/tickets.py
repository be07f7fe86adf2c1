"""Asks an HTTP service with a short time-out, many calls at once, as real clients do that only follow Retry-After.

    tickets.py requests|zvmsdk PORT CALLS TIMEOUT

Prints one line of JSON: how many calls were answered, and the errors of the others.
"""
import collections
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor


def by_requests(port, timeout):
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    retry = Retry(total=50, respect_retry_after_header=True, status_forcelist=[503])

    def ask(number):
        with requests.Session() as session:
            session.mount('http://', HTTPAdapter(max_retries=retry))
            return session.get(f'http://127.0.0.1:{port}/call/{number}', timeout=timeout).status_code == 200
    return ask


def by_zvmsdk(port, timeout):
    # The client of nova's driver. It knows no Retry-After, so what repeats its call waits a second.
    from zvmconnector import connector

    def ask(number):
        client = connector.ZVMConnector(ip_addr='127.0.0.1', port=port, timeout=timeout, connection_type='socket')
        for _ in range(50):
            if client.send_request('guest_get_info', f'G{number}')['overallRC'] == 0:
                return True
            time.sleep(1)
        return False
    return ask


def main():
    library, port, calls, timeout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    ask = {'requests': by_requests, 'zvmsdk': by_zvmsdk}[library](port, timeout)

    def tried(number):
        try:
            return 'answered' if ask(number) else 'refused'
        except Exception as error:
            return type(error).__name__
    with ThreadPoolExecutor(calls) as threads:
        print(json.dumps(collections.Counter(threads.map(tried, range(calls)))))


main()

#!/usr/bin/env python3
"""Runs nova's own z/VM driver with the threads of one nova-compute, each of which always has work.

nova 34 runs nova-compute on native threads. The pools are nova's own, with their default sizes: builds and snapshots share
one (max_concurrent_builds, 10), power syncs have one (sync_power_state_pool_size, 5), and so has everything else
(default_thread_pool_size, 10). Calls by RPC run in that of oslo.messaging (executor_thread_pool_size, 64).

When --seconds are over, no operation starts, and those that run come to their end. Prints one line.
"""
import argparse
import contextlib
import itertools
import json
import logging
import os
import statistics
import sys
import tempfile
import threading
import time

os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = 'true'
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

import futurist  # noqa: E402
from nova import conf, thread_pool_factory, utils  # noqa: E402
from nova.image import glance  # noqa: E402
from nova.objects import image_meta, instance  # noqa: E402
from nova.virt.zvm import driver  # noqa: E402
from nova.virt.zvm import utils as zvmutils  # noqa: E402
from oslo_messaging import server as rpc_server  # noqa: E402

import common  # noqa: E402

ap = argparse.ArgumentParser(description=__doc__,
                             formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument('--port', type=int, required=True, help='of sdkwsgi, or of Tidegate in front of it')
ap.add_argument('--seconds', type=float, required=True)
opts = ap.parse_args()

# The stub of the SDK server knows HRX00000 to HRX00499. What is built is none of them.
KNOWN = 500
UUID = '00000000-0000-4000-8000-%012d'
LONG, SYNC, DEFAULT = (thread_pool_factory.ExecutorType[name]
                       for name in ('LONG_TASK', 'SYNC_POWER', 'DEFAULT'))


class Pool:
    """The calls of one kind of work: how many, how long each took, how many ran at once, and what failed."""

    def __init__(self):
        self.operations, self.seconds, self.errors, self.failures = 0, [], [], []
        self.now = self.most = 0


class Record:
    """All calls of the driver, by the pool of the thread that makes them."""

    def __init__(self):
        self.lock, self.thread = threading.Lock(), threading.local()
        self.pools, self.all = {}, Pool()

    def call(self, plain):
        """The method `call` of the driver's client, recorded."""
        def recorded(client, function, *args, **kwargs):
            pools = (self.thread.pool, self.all)
            with self.lock:
                for pool in pools:
                    pool.now += 1
                    pool.most = max(pool.most, pool.now)
            began = time.monotonic()
            try:
                return plain(client, function, *args, **kwargs)
            except Exception as error:
                with self.lock:
                    self.thread.pool.errors.append('%s: %s' % (function, error))
                raise
            finally:
                with self.lock:
                    for pool in pools:
                        pool.now -= 1
                        pool.seconds.append(time.monotonic() - began)
        return recorded

    def say(self, began):
        common.say(
            seconds=time.monotonic() - began, most_at_once=self.all.most,
            pools={name: {'operations': pool.operations, 'calls': len(pool.seconds),
                          'errors': len(pool.errors), 'failures': len(pool.failures),
                          'first': pool.errors[:3] + pool.failures[:3],
                          'most_at_once': pool.most,
                          'middle_seconds': statistics.median(pool.seconds),
                          'longest_seconds': max(pool.seconds)}
                   for name, pool in self.pools.items()})


class Glance:
    """The image service of a snapshot. The SDK server would have copied the image to the path before."""

    def update(self, context, image_id, meta, data, purge_props):
        data.read()

    def delete(self, context, image_id):
        pass


class Virtapi:
    """What the driver needs of nova-compute: no port waits for neutron here."""

    @contextlib.contextmanager
    def wait_for_instance_event(self, *args, **kwargs):
        yield


def guest(number):
    return instance.Instance(
        id=number, uuid=UUID % number, vcpus=1, memory_mb=1024, root_gb=5, project_id='tests',
        config_drive='', image_ref=UUID % 1, launched_at=None, system_metadata={})


class Work:
    """One operation of each kind, as nova-compute asks the driver for it."""

    def __init__(self, folder):
        self.folder = folder
        self.driver = driver.ZVMDriver(Virtapi())
        self.numbers = itertools.count(KNOWN)
        self.existing = itertools.cycle(range(KNOWN))
        self.turns = itertools.count()
        self.image = image_meta.ImageMeta.from_dict(
            {'id': UUID % 1, 'properties': {'os_distro': 'sles15.5'}})
        self.network = [{'id': UUID % 2, 'address': '02:00:00:12:34:56', 'active': True,
                         'network': {'subnets': [{
                             'cidr': '192.0.2.0/24', 'gateway': {'address': '192.0.2.1'},
                             'ips': [{'address': '192.0.2.7'}]}]}}]

    def build(self):
        number = next(self.numbers)
        if number > 99999:
            raise RuntimeError('no names are left')
        self.driver.spawn(None, guest(number), self.image, [], None, {}, self.network)
        # The manager looks whether it runs.
        self.driver.get_info(guest(number))

    def snapshot(self):
        image = UUID % next(self.numbers)
        with open(os.path.join(self.folder, image), 'w') as out:
            out.write('image')
        self.driver.snapshot(None, guest(next(self.existing)), image, lambda **kwargs: None)

    def sync(self):
        self.driver.get_info(guest(next(self.existing)))

    def other(self):
        self.driver.get_available_resource()

    def rpc(self):
        """Start, stop, reboot and so on, each between two looks at the power state; and two without them."""
        one = guest(next(self.existing))
        changes = [lambda: self.driver.power_on(None, one, []),
                   lambda: self.driver.power_off(one, 60, 10),
                   lambda: self.driver.pause(one),
                   lambda: self.driver.unpause(one),
                   lambda: self.driver.reboot(None, one, [], 'SOFT'),
                   lambda: self.driver.reboot(None, one, [], 'HARD')]
        turn = next(self.turns) % (len(changes) + 2)
        if turn < len(changes):
            self.driver.get_info(one)
            changes[turn]()
            self.driver.get_info(one)
        elif turn == len(changes):
            self.driver.get_console_output(None, one)
        else:
            self.driver.destroy(None, one)


def configure(folder):
    conf.CONF([], project='nova', default_config_files=[], default_config_dirs=[])
    for name, value in {'instance_name_template': 'HRX%05d', 'instances_path': folder,
                        'my_ip': '127.0.0.1', 'state_path': folder}.items():
        conf.CONF.set_override(name, value)
    conf.CONF.set_override('cloud_connector_url', 'http://127.0.0.1:%d' % opts.port, 'zvm')
    conf.CONF.set_override('image_tmp_path', folder, 'zvm')
    # sdkwsgi takes no guest_deploy without a path; nova gets it from mkisofs.
    zvmutils.generate_configdrive = lambda *args: os.path.join(folder, 'cfgdrive.iso')
    glance.get_remote_image_service = lambda context, image: (Glance(), image)
    # It logs each error with a traceback. They are counted instead.
    logging.disable(logging.CRITICAL)
    assert utils.concurrency_mode_threading(), 'nova does not run on native threads'


def main(folder):
    record = Record()
    configure(folder)
    record.thread.pool = Pool()
    work = Work(folder)
    record.all = Pool()
    zvmutils.ConnectorClient.call = record.call(zvmutils.ConnectorClient.call)
    threads = next(opt.default for opt in rpc_server._pool_opts
                   if opt.name == 'executor_thread_pool_size')
    rpc = futurist.ThreadPoolExecutor(threads)
    running = threading.Semaphore(0)
    # Each user asks for the next when the one before has come to its end. More would only wait inside nova.
    users = [('build', work.build, 10, thread_pool_factory.get_executor(LONG)),
             ('snapshot', work.snapshot, 5, thread_pool_factory.get_executor(LONG)),
             ('power sync', work.sync, 5, thread_pool_factory.get_executor(SYNC)),
             ('default', work.other, 10, thread_pool_factory.get_executor(DEFAULT)),
             ('RPC', work.rpc, threads, rpc)]
    began = time.monotonic()

    def turn(pool, operation, executor):
        record.thread.pool = pool
        try:
            operation()
            with record.lock:
                pool.operations += 1
        except Exception as error:
            with record.lock:
                pool.failures.append(repr(error))
        if time.monotonic() - began < opts.seconds:
            executor.submit(turn, pool, operation, executor)
        else:
            running.release()

    for name, operation, count, executor in users:
        pool = record.pools[name] = Pool()
        for _ in range(count):
            executor.submit(turn, pool, operation, executor)
    for _ in range(sum(count for _, _, count, _ in users)):
        running.acquire()
    record.say(began)
    rpc.shutdown()
    thread_pool_factory.shutdown_all_executors()


with tempfile.TemporaryDirectory() as own:
    main(own)

"""Reads what callgrind counted, by function and by stage of Tidegate."""
import re

# The first that matches; what none matches is the rest.
STAGES = [
    ('accept and protocol', r'tidegate::(listen|protocol|app::Shared::accept)|tidegate_zvm::(array|framer)|serde_json'),
    ('classify', r'tidegate::classify|tidegate_zvm::(routes|path|functions)'),
    ('callers', r'tidegate::callers|tidegate_callers'),
    ('the gate: admit, scheduler', r'tidegate::admit|tidegate_limits'),
    ('forward', r'tidegate::forward|tidegate_zvm::reply'),
    ('pipeline and record', r'tidegate::(pipeline|call)\b'),
    ('report: metrics, log, history', r'tidegate::(app|telemetry|series)|prometheus'),
    ('h1: heads and chunks', r'tidegate_h1'),
    ('hyper, http, httparse', r'\b(hyper|http|httparse|http_body|http_body_util|hyper_util)::'),
    ('tokio', r'\b(tokio|tokio_util|mio)::'),
    ('memory: allocator, moves, sums', r'_rjem|jemalloc|tcache|malloc|sdallocx|memcpy|memmove|memset|memcmp|memchr'),
]
ALLOCATES = re.compile(r'^(_rjem_)?(malloc|calloc|realloc|mallocx|rallocx|aligned_alloc|posix_memalign)$')
SYSTEM_CALLS = re.compile(
    r'^(__)?(epoll_wait|epoll_ctl|epoll_pwait|recv|recvfrom|recvmsg|send|sendto|sendmsg|read|readv|write|writev|accept|accept4'
    r'|connect|socket|close|shutdown|setsockopt|getsockopt|getsockname|getpeername|ioctl|fcntl|futex)(64)?(@.*)?$')


def counts(profile):
    """The names of what was counted, the counts by function without those of what it calls, and how often each was called."""
    names, spent, times, function, called, calls, events = {}, {}, {}, None, None, None, []
    for line in open(profile):
        named = re.match(r'^(c?)fn=\((\d+)\)(?: (.*))?$', line.rstrip())
        if named:
            if named[3]:
                # Recursion has a number of its own.
                names[named[2]] = re.sub(r"'\d+$", '', named[3])
            if named[1]:
                called = names[named[2]]
            else:
                function = names[named[2]]
        elif line.startswith('events:'):
            events = line.split()[1:]
        elif line.startswith('calls='):
            calls = int(line[6:].split()[0])
        elif re.match(r'^[+\-*\d]', line):
            if calls is not None:
                times[called] = times.get(called, 0) + calls
                calls = None
            elif function is not None:
                # Zeros at the end are left out.
                own = spent.setdefault(function, [0] * len(events))
                for at, count in enumerate(line.split()[1:]):
                    own[at] += int(count)
    return events, spent, times


def read(profile):
    """Instructions by function without those of what it calls, and how often each function was called."""
    _, spent, times = counts(profile)
    return {function: own[0] for function, own in spent.items()}, times


def stage_of(function):
    # Of `<Teller as Observe>::ended` the type says whose it is.
    function = function.split(' as ')[0]
    for name, pattern in STAGES:
        if re.search(pattern, function):
            return name
    return 'the rest: std, the C library'

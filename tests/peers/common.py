"""What the peers share: a configuration of their own, and an end that cannot be missed."""
import json
import os
import sys
import threading


def base_args(parser):
    parser.add_argument('--state', required=True, help='directory for config, logs and databases')
    parser.add_argument('--port', type=int, default=0, help='0: a free one, printed at the start')


def prepare(state, sections):
    """Makes zvmsdk load a zvmsdk.conf written here, whatever /etc or HOME hold."""
    os.makedirs(state, exist_ok=True)
    own = {'zvm': {'user_profile': 'OSDFLT', 'namelist': 'NLPEER'},
           'network': {'my_ip': '127.0.0.1'},
           'database': {'dir': os.path.join(state, 'db')},
           'image': {'sdk_image_repository': os.path.join(state, 'images')},
           'file': {'file_repository': os.path.join(state, 'files')},
           'logging': {'log_dir': state}}
    path = os.path.join(state, 'zvmsdk.conf')
    with open(path, 'w') as out:
        for name, values in {**own, **sections}.items():
            out.write('[%s]\n' % name)
            out.writelines('%s=%s\n' % item for item in values.items())
    from zvmsdk import config
    config.CONFOPTS.find_config_file = lambda *args, **kwargs: path
    config.load_config()
    from zvmsdk import log
    log.setup_log()


def end_with_stdin():
    """Ends this process when whoever started it closes our stdin, by dying if need be."""
    def watch():
        # Not sys.stdin: its lock, held by a read, upsets the interpreter's own end.
        while os.read(0, 4096):
            pass
        os._exit(0)
    threading.Thread(target=watch, daemon=True).start()


def ready(**ports):
    """The line that a test waits for: where we are to be found."""
    say(ready=ports)


def say(**fields):
    """One line of JSON. Keys are sorted, so that equal runs print equal bytes."""
    sys.stdout.write(json.dumps(fields, sort_keys=True) + '\n')
    sys.stdout.flush()

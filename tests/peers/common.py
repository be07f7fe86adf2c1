"""What the peers share: their own configuration, and a reliable exit."""
import json
import os
import sys
import threading


def base_args(parser):
    parser.add_argument('--state', required=True, help='directory for config, logs and databases')
    parser.add_argument('--port', type=int, default=0, help='0: a free one, printed at the start')


def prepare(state, sections):
    """Makes zvmsdk load a zvmsdk.conf written here, and ignore /etc and HOME."""
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
    """Exits when the starting process closes our stdin, by a kill if necessary."""
    def watch():
        # Not sys.stdin: a read holds its lock, which disturbs the interpreter's exit.
        while os.read(0, 4096):
            pass
        os._exit(0)
    threading.Thread(target=watch, daemon=True).start()


def ready(**ports):
    """The line that a test waits for: our address."""
    say(ready=ports)


def say(**fields):
    """One line of JSON. Keys are sorted, so that equal runs print equal bytes."""
    sys.stdout.write(json.dumps(fields, sort_keys=True) + '\n')
    sys.stdout.flush()

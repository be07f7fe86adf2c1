#!/usr/bin/env python3
"""Drives sdkwsgi, or Tidegate in front of it, with the real REST client.

answers  every function in the client's own table: one line each, with the HTTP answer
errors   what sdkwsgi refuses, asked for with bare requests: one line each
storm    --count calls of guest_get_info at once: one line for all
"""
import argparse
import json
import sys

import requests
from zvmconnector import restclient

import common
from storm import storm

ap = argparse.ArgumentParser(description=__doc__,
                             formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument('mode', choices=('answers', 'errors', 'storm'))
ap.add_argument('--port', type=int, required=True)
ap.add_argument('--token-path', help='the server has auth=token; this file has the admin token')
ap.add_argument('--count', type=int, default=300)
opts = ap.parse_args()

NIC = [{'nic_vdev': '1000', 'ip_addr': '192.0.2.1', 'gateway_addr': '192.0.2.254',
        'cidr': '192.0.2.0/24'}]
VOLUME = {'assigner_id': 'HRX00000', 'zvm_fcp': ['1faa'], 'target_wwpn': ['0x5005076801401234'],
          'target_lun': '0x0026000000000000', 'os_version': 'rhel7', 'multipath': True,
          'mount_point': '/dev/sdz', 'is_root_volume': False}
# Functions that need other arguments than a userid.
ARGUMENTS = {
    'guest_create': ('HRX00000', 1, 1024),
    'guest_inspect_stats': (['HRX00000', 'HRX00001'],),
    'guest_delete_nic': ('HRX00000', '1000'),
    'guest_nic_couple_to_vswitch': ('HRX00000', '1000', 'VSW1'),
    'guest_nic_uncouple_from_vswitch': ('HRX00000', '1000'),
    'guest_live_migrate': ('HRX00000', 'ZCC2', 'DEST', {}, 'move'),
    'guest_register': ('HRX00000', 'rhel7', '1'),
    'guest_capture': ('HRX00000', 'img'),
    'guest_deploy': ('HRX00000', 'img'),
    'guest_create_disks': ('HRX00000', [{'size': '1g'}]),
    'guest_delete_disks': ('HRX00000', ['0101']),
    'guest_config_minidisks': ('HRX00000', [{'format': 'ext3'}]),
    'guest_create_network_interface': ('HRX00000', 'rhel7', NIC),
    'guest_delete_network_interface': ('HRX00000', 'rhel7', '1000'),
    'guest_live_resize_cpus': ('HRX00000', 2),
    'guest_resize_cpus': ('HRX00000', 2),
    'guest_live_resize_mem': ('HRX00000', '2g'),
    'guest_resize_mem': ('HRX00000', '2g'),
    'guest_grow_root_volume': ('HRX00000', 'rhel7'),
    'volume_attach': (VOLUME,),
    'volume_detach': (VOLUME,),
    'set_fcp_usage': ('1faa', 'HRX00000', 0, 0, 'tmpl'),
    'get_fcp_usage': ('1faa',),
    'create_fcp_template': ('tmpl',),
    'image_import': ('img', 'file:///img', {'os_version': 'rhel7'}),
    'image_export': ('img', 'file:///img'),
    'vswitch_create': ('VSW1',),
    'vswitch_grant_user': ('VSW1', 'HRX00000'),
    'vswitch_revoke_user': ('VSW1', 'HRX00000'),
    'vswitch_set_vlan_id_for_user': ('VSW1', 'HRX00000', 10),
    'file_import': (__file__,),
    'file_export': (__file__,)}

# Headers of one hop, not of the answer (RFC 9110, 7.6.1); and the date, which changes.
NOT_THE_ANSWERS = {'connection', 'keep-alive', 'transfer-encoding', 'date'}


def client():
    return restclient.RESTClient('127.0.0.1', opts.port, token_path=opts.token_path,
                                 auth='token' if opts.token_path else None).call


def http_answer(reply):
    headers = sorted((name.lower(), value) for name, value in reply.headers.items()
                     if name.lower() not in NOT_THE_ANSWERS)
    # A real token contains the second in which it expires.
    headers = [(name, 'a token' if name == 'x-auth-token' and value.count('.') == 2 else value)
               for name, value in headers]
    return {'request': '%s %s' % (reply.request.method, reply.request.path_url),
            'status': reply.status_code, 'reason': reply.reason, 'headers': headers,
            'body': reply.content.decode('latin-1')}


def answers():
    seen, plain = [], requests.request

    def watched(*args, **kwargs):
        reply = plain(*args, **kwargs)
        seen.append(http_answer(reply))
        return reply
    restclient.requests.request = watched
    for function, row in restclient.DATABASE.items():
        seen.clear()
        given = ARGUMENTS.get(function) or ('HRX00000',) * row['args_required']
        reply = client()(function, *given)
        common.say(call=function, http=seen, code=[
            reply['overallRC'], reply['modID'], reply['rc'], reply['rs']])


def errors():
    json_type = {'Content-Type': 'application/json'}

    def tell(call, method, path, data=None, headers=()):
        reply = requests.request(method, 'http://127.0.0.1:%d%s' % (opts.port, path), data=data,
                                 headers={**json_type, **dict(headers)}, timeout=60)
        common.say(call=call, http=[http_answer(reply)])

    def disks(count):
        return json.dumps({'guest': {'userid': 'HRX00000', 'vcpus': 1, 'memory': 1024,
                                     'disk_list': [{'size': '10g', 'format': 'ext4'}] * count}})
    if opts.token_path:
        with open(opts.token_path) as file:
            admin = file.read().strip()
        tell('no token', 'GET', '/guests')
        tell('bad token', 'GET', '/guests', headers={'X-Auth-Token': 'abc'})
        tell('no admin token', 'POST', '/token')
        tell('wrong admin token', 'POST', '/token', headers={'X-Admin-Token': 'x'})
        tell('admin token', 'POST', '/token', headers={'X-Admin-Token': admin})
        return
    tell('no admin token', 'POST', '/token')
    tell('version', 'GET', '/')
    tell('health', 'GET', '/smapi_health')
    tell('health, the old way', 'GET', '/smapi-healthy')
    tell('unknown guest', 'GET', '/guests/NOEXIST/info')
    tell('SMT error', 'GET', '/guests/SMTERR/info')
    tell('server exception', 'GET', '/guests/BOOM/info')
    tell('backend sends nothing', 'GET', '/guests/UNSER/user_direct')
    tell('answer beyond ASCII', 'GET', '/guests/UTF8/user_direct')
    tell('1 MB of answer', 'POST', '/guests/BIG/action', '{"action": "get_console_output"}')
    tell('no route', 'GET', '/nothing')
    tell('wrong method', 'PUT', '/guests')
    tell('bad userid', 'GET', '/guests/TOOLONGNAME/info')
    tell('unknown action', 'POST', '/guests/HRX00000/action', '{"action": "fly"}')
    tell('no action', 'POST', '/guests/HRX00000/action', '{}')
    tell('body is not JSON', 'POST', '/guests', '{')
    tell('action is not JSON', 'POST', '/guests/HRX00000/action', '{')
    tell('body against the schema', 'POST', '/guests', '{"guest": {}}')
    tell('start', 'POST', '/guests/HRX00000/action', '{"action": "start"}')
    # More than the sdkserver reads, as sdkwsgi writes it: with and without the spaces.
    tell('120 disks', 'POST', '/guests', disks(120))
    tell('140 disks', 'POST', '/guests', disks(140))


sys.exit({'answers': answers, 'errors': errors,
          'storm': lambda: storm(opts.count, client)}[opts.mode]())

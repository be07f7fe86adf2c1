//! Reads a call's request, and makes the bytes of its reply.

use std::io::Write as _;

use serde_json::value::RawValue;
use tidegate_zvm::array::Elements;
use tidegate_zvm::reply::{ErrorReply, http_status};

/// Output for the userid `BIG`.   bytes
const BIG: usize = 1024 * 1024;

/// The parts of a call that matter here.
#[derive(Debug)]
pub(super) struct CallRequest {
    /// The function, or method and path.
    pub(super) name: String,
    pub(super) userid: String,
}

/// Reads `[function, args, kwargs]`.
pub(super) fn parse_array(bytes: &[u8]) -> Result<CallRequest, String> {
    let text = std::str::from_utf8(bytes).map_err(|cause| cause.to_string())?;
    let call = Elements::read(text).map_err(|cause| cause.to_string())?;
    let args: Vec<&RawValue> =
        serde_json::from_str(call.args).map_err(|cause| cause.to_string())?;
    let userid = args
        .first()
        .and_then(|first| serde_json::from_str(first.get()).ok())
        .unwrap_or_default();
    let name = call.function.into_owned();
    Ok(CallRequest { name, userid })
}

/// `GET /guests/HRX00001/info` is about HRX00001, as is any path with another first word.
pub(super) fn ask_of_path(request: &str) -> CallRequest {
    let name = request.split('?').next().unwrap_or(request).to_owned();
    let userid = name.split('/').nth(2).unwrap_or_default().to_owned();
    CallRequest { name, userid }
}

/// The answer to a successful call. It repeats the request, so that a reply to the wrong client
/// is noticed.
pub(super) fn answer(ask: &CallRequest, padding: usize) -> Vec<u8> {
    let padding = if ask.userid == "BIG" { BIG } else { padding };
    let mut json = Vec::with_capacity(256 + padding);
    json.extend_from_slice(
        br#"{"overallRC": 0, "modID": null, "rc": 0, "rs": 0, "errmsg": "", "output": {"call": "#,
    );
    write_string(&mut json, &ask.name);
    json.extend_from_slice(br#", "userid": "#);
    write_string(&mut json, &ask.userid);
    json.extend_from_slice(
        br#", "power_state": "on", "num_cpu": 2, "max_mem_kb": 4194304, "cpu_time_us": 8796093022"#,
    );
    if padding > 0 {
        json.extend_from_slice(br#", "padding": ""#);
        json.resize(json.len() + padding, b'x');
        json.push(b'"');
    }
    json.extend_from_slice(b"}}");
    json
}

/// The server's answer to a request that it cannot read.
pub(super) fn internal_error(message: &str) -> Vec<u8> {
    let errmsg = format!("Unexpected internal error in ZVM SDK, error: {message}");
    error(500, 100, 500, 1, &errmsg)
}

pub(super) fn error(overall_rc: u16, module: u16, rc: i32, rs: u16, errmsg: &str) -> Vec<u8> {
    let reply = ErrorReply {
        overall_rc,
        module,
        rc,
        rs,
        errmsg,
        retry_after: None,
    };
    reply.to_json().into_bytes()
}

fn write_string(json: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(json, text).expect("a string can be written to memory");
}

/// An HTTP response as sdkwsgi frames it; its status follows from the `overallRC`.
pub(super) fn response(overall_rc: u16, json: &[u8], head_only: bool) -> Vec<u8> {
    let status = match http_status(overall_rc.into()) {
        200 => "200 OK",
        404 => "404 Not Found",
        _ => "500 Internal Server Error",
    };
    let mut reply = Vec::with_capacity(192 + json.len());
    write!(
        reply,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nCache-Control: no-cache\r\n\
         Content-Length: {}\r\n\r\n",
        json.len()
    )
    .expect("memory can be written to");
    if !head_only {
        reply.extend_from_slice(json);
    }
    reply
}

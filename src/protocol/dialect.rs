//! Answers of our own: to clients of the SDK server in its form, on both protocols; to any other
//! HTTP client as problem details. docs/reference/errors.md lists every answer.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use crate::call::refusal::{RefusalForm, RefusalTemplate, RequestForm};
use crate::call::sdk::reply::{ErrorReply, MODULE_ID};
use crate::call::{Reason, Refusal};

/// The body of a refusal: one JSON object.
#[must_use]
pub fn refusal_json(refusal: &Refusal) -> Bytes {
    let overall_rc = refusal.reason.overall_rc();
    let retry_after = refusal.retry_after.map(retry_after_seconds);
    let reply = ErrorReply {
        overall_rc,
        module: MODULE_ID,
        rc: overall_rc.into(),
        rs: refusal.reason.rs(),
        errmsg: &errmsg(refusal, retry_after),
        retry_after,
    };
    reply.to_json().into()
}

/// The body of a refusal as problem details (RFC 9457). No type is given, so the title is that of the
/// status; `reason` is what programs decide by.
#[derive(Serialize)]
struct ProblemDetails<'a> {
    title: &'static str,
    status: u16,
    detail: &'a str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<String>,
}

/// The body of a refusal as problem details: one JSON object.
#[must_use]
pub fn problem_json(refusal: &Refusal, status: StatusCode) -> Bytes {
    let problem = ProblemDetails {
        title: status.canonical_reason().unwrap_or_default(),
        status: status.as_u16(),
        detail: &refusal.detail,
        reason: refusal.reason.label(),
        limit: refusal.limit.as_deref(),
        retry_after: refusal.retry_after.map(retry_after_seconds),
        call: refusal.call.map(call_id),
    };
    let json = serde_json::to_vec(&problem);
    json.expect("texts and numbers can always be written")
        .into()
}

/// The body of a refusal in the form of its route, its status and its type.
#[must_use]
pub fn in_form(
    refusal: &Refusal,
    status: StatusCode,
    refused_as: &RefusalTemplate,
) -> FormedRefusal {
    // Clients of these protocols read errors in answers that have succeeded as HTTP.
    let (status, body) = match refused_as.form {
        RefusalForm::Problem => {
            return FormedRefusal {
                status,
                body: problem_json(refusal, status),
                kind: PROBLEM,
            };
        }
        RefusalForm::XmlRpc => return in_xml(xml_rpc_fault(refusal, status)),
        RefusalForm::Xapi if refused_as.request == RequestForm::Xml => {
            return in_xml(xml_rpc_failure(refusal));
        }
        RefusalForm::Xapi => (StatusCode::OK, xapi_failure(refusal, refused_as)),
        RefusalForm::OpenAi => (status, openai_error(refusal, status)),
        RefusalForm::Mcp if refused_as.request == RequestForm::ToolCall => {
            let content = json!([{ "type": "text", "text": sentence(refusal) }]);
            let result = json!({
                "content": content,
                "isError": true,
                // Required since the version of July 2026; older clients pass over it.
                "resultType": "complete",
            });
            (StatusCode::OK, json_rpc(refused_as, "result", &result))
        }
        RefusalForm::JsonRpc | RefusalForm::Mcp => {
            let error = json_rpc_error(refusal);
            (StatusCode::OK, json_rpc(refused_as, "error", &error))
        }
    };
    FormedRefusal {
        status,
        body: body.into(),
        kind: "application/json",
    }
}

/// A refusal in the form of a protocol.
#[derive(Debug)]
pub struct FormedRefusal {
    /// The status of HTTP.
    pub status: StatusCode,
    /// The body.
    pub body: Bytes,
    /// The type of the body.
    pub kind: &'static str,
}

/// The type of problem details.
pub const PROBLEM: &str = "application/problem+json";
/// The code of JSON-RPC for a limit that is exceeded: in the range that servers choose from.
const LIMIT_EXCEEDED: i32 = -32005;
/// The codes of JSON-RPC for a bad request, and for a failure of the server.
const INVALID_REQUEST: i32 = -32600;
const INTERNAL_ERROR: i32 = -32603;

/// A message of JSON-RPC 2.0 with the id of the request.
fn json_rpc(refused_as: &RefusalTemplate, key: &str, value: &Value) -> String {
    let id = refused_as.id.as_deref().unwrap_or("null");
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{key}\":{value}}}")
}

fn json_rpc_error(refusal: &Refusal) -> Value {
    let code = match refusal.reason.overall_rc() {
        400 => INVALID_REQUEST,
        500 => INTERNAL_ERROR,
        _ => LIMIT_EXCEEDED,
    };
    let mut data = json!({ "reason": refusal.reason.label() });
    if let Some(limit) = &refusal.limit {
        data["limit"] = json!(&**limit);
    }
    if let Some(after) = refusal.retry_after {
        data["retryAfterMs"] = json!(retry_after_seconds(after) * 1000);
    }
    if let Some(id) = refusal.call {
        data["call"] = json!(call_id(id));
    }
    json!({ "code": code, "message": sentence(refusal), "data": data })
}

/// The code of XAPI, and what goes with it.
fn xapi_error(refusal: &Refusal) -> [String; 2] {
    let code = match (refusal.reason, refusal.reason.overall_rc()) {
        // "The host toolstack is still initialising. Please wait." Clients ask again after a moment, which is right: nothing was
        // sent.
        (Reason::BackendUnreachable | Reason::Draining, _) => "HOST_STILL_BOOTING",
        // Waiting does not help.
        (Reason::BackendTls, _) => "INTERNAL_ERROR",
        (_, 400) => "INVALID_VALUE",
        (_, 500) => "INTERNAL_ERROR",
        // "The request was rejected because the server is too busy."
        _ => "TOO_BUSY",
    };
    [code.to_owned(), sentence(refusal)]
}

/// A failure in JSON-RPC, whose versions differ.
fn xapi_failure(refusal: &Refusal, refused_as: &RefusalTemplate) -> String {
    let [code, why] = xapi_error(refusal);
    if refused_as.request == RequestForm::JsonRpc1 {
        let id = refused_as.id.as_deref().unwrap_or("null");
        let result = json!({ "Status": "Failure", "ErrorDescription": [code, why] });
        return format!("{{\"result\":{result},\"error\":null,\"id\":{id}}}");
    }
    json_rpc(
        refused_as,
        "error",
        &json!({ "code": 1, "message": code, "data": [why] }),
    )
}

/// A failure in XML-RPC: an answer whose status says so.
fn xml_rpc_failure(refusal: &Refusal) -> String {
    let [code, why] = xapi_error(refusal).map(|text| escaped(&text));
    format!(
        "<?xml version=\"1.0\"?>\n<methodResponse><params><param><value><struct>\
         <member><name>Status</name><value>Failure</value></member>\
         <member><name>ErrorDescription</name><value><array><data>\
         <value>{code}</value><value>{why}</value></data></array></value></member>\
         </struct></value></param></params></methodResponse>\n"
    )
}

fn in_xml(body: String) -> FormedRefusal {
    FormedRefusal {
        status: StatusCode::OK,
        body: body.into(),
        kind: "text/xml",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn openai_error(refusal: &Refusal, status: StatusCode) -> String {
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    };
    let error = json!({
        "message": sentence(refusal),
        "type": kind,
        "param": null,
        "code": refusal.reason.label(),
    });
    json!({ "error": error }).to_string()
}

fn xml_rpc_fault(refusal: &Refusal, status: StatusCode) -> String {
    let code = status.as_u16();
    let text = escaped(&sentence(refusal));
    format!(
        "<?xml version=\"1.0\"?>\n<methodResponse><fault><value><struct>\
         <member><name>faultCode</name><value><int>{code}</int></value></member>\
         <member><name>faultString</name><value><string>{text}</string></value></member>\
         </struct></value></fault></methodResponse>\n"
    )
}

/// The sentence for a person.
fn sentence(refusal: &Refusal) -> String {
    errmsg(refusal, refusal.retry_after.map(retry_after_seconds))
}

/// Whole seconds until it is worth coming back, rounded up: the number for `retryAfter` and for the
/// `Retry-After` header. 0 only for a client that has a place, and whose turn is near.
#[must_use]
pub fn retry_after_seconds(wait: Duration) -> u64 {
    let begun = u64::from(wait.subsec_nanos() > 0);
    wait.as_secs().saturating_add(begun)
}

/// The id of a call as in its access line, which `tidegate explain` takes.
pub(super) fn call_id(id: u64) -> String {
    format!("{id:016x}")
}

/// The sentence for a person: what happened, which limit and reason in the words of the
/// config and the metrics, and when to come back.
fn errmsg(refusal: &Refusal, retry_after: Option<u64>) -> String {
    let mut errmsg = String::with_capacity(128);
    errmsg.push_str("tidegate: ");
    errmsg.push_str(&refusal.detail);
    let reason = refusal.reason.label();
    let written = match &refusal.limit {
        Some(limit) => write!(errmsg, " (limit {limit}: {reason})"),
        None => write!(errmsg, " ({reason})"),
    };
    written.expect("a String takes everything");
    if let Some(seconds) = retry_after {
        write!(errmsg, "; come back in {seconds} s").expect("a String takes everything");
    }
    if let Some(id) = refusal.call {
        write!(errmsg, "; call {}", call_id(id)).expect("a String takes everything");
    }
    errmsg
}

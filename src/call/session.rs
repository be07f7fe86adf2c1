//! Sessions whose logins passed here: the user and the originator of a call that names only its session.
//!
//! A login names them, and its answer the session. So they are known only after the backend has accepted the login, and no
//! client chooses those of another one. A session is a secret: only its hash is kept, with keys of this process.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};

use foldhash::HashMap;
use tidegate_message::JsonPointers;
use tidegate_runtime::lock;

/// Most sessions that are known. Of more, those are forgotten that no call has used for longest.
const SESSIONS_MAX: usize = 8192;

/// The names of a caller, by a message or by the login of its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerNames {
    /// The user.
    pub user: Arc<str>,
    /// The program on whose behalf the client asks; `None` leaves what its head says.
    pub originator: Option<Arc<str>>,
}

/// The hash of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionHash(u64, u64);

/// The known sessions. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Arc<SessionTable>);

#[derive(Debug, Default)]
struct SessionTable {
    keys: [RandomState; 2],
    generations: Mutex<Generations>,
}

/// Two halves of the table. A session that is used moves to the first one. When that is full, it becomes the second, whose
/// sessions are forgotten.
#[derive(Debug, Default)]
struct Generations {
    used: HashMap<SessionHash, CallerNames>,
    idle: HashMap<SessionHash, CallerNames>,
}

impl Sessions {
    /// The hash by which a session is known.
    #[must_use]
    pub fn hash(&self, session: &str) -> SessionHash {
        let [first, second] = &self.0.keys;
        SessionHash(first.hash_one(session), second.hash_one(session))
    }

    /// The user and the originator whose login has opened a session.
    #[must_use]
    pub fn names(&self, session: &str) -> Option<CallerNames> {
        let hash = self.hash(session);
        let mut generations = lock(&self.0.generations);
        if let Some(names) = generations.used.get(&hash) {
            return Some(names.clone());
        }
        let names = generations.idle.remove(&hash)?;
        generations.add(hash, names.clone());
        Some(names)
    }

    fn open(&self, session: &str, names: CallerNames) {
        lock(&self.0.generations).add(self.hash(session), names);
    }

    fn close(&self, session: SessionHash) {
        let mut generations = lock(&self.0.generations);
        generations.used.remove(&session);
        generations.idle.remove(&session);
    }
}

impl Generations {
    fn add(&mut self, session: SessionHash, names: CallerNames) {
        if self.used.len() >= SESSIONS_MAX / 2 {
            self.idle = std::mem::take(&mut self.used);
        }
        self.used.insert(session, names);
    }
}

impl PartialEq for Sessions {
    /// Whether both are the same table.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Sessions {}

/// A change that an answer makes in the known sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionChange {
    /// The known sessions.
    pub sessions: Sessions,
    /// The change.
    pub kind: SessionChangeKind,
}

/// The kind of a [`SessionChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChangeKind {
    /// The answer to a login names the session that these names have opened.
    Opens(CallerNames),
    /// The answer to a logout, whatever it says, leaves no such session.
    Closes(SessionHash),
}

impl SessionChange {
    /// Makes the change by the whole body of an answer.
    pub(super) fn make(self, body: &[u8]) {
        match self.kind {
            SessionChangeKind::Closes(session) => self.sessions.close(session),
            SessionChangeKind::Opens(names) => {
                if let Some(session) = opened(body).filter(|session| !session.is_empty()) {
                    self.sessions.open(&session, names);
                }
            }
        }
    }
}

/// The session in an answer of XAPI: the result in JSON-RPC 2.0, else the value beside the status `Success`.
fn opened(body: &[u8]) -> Option<String> {
    if body.trim_ascii_start().first() == Some(&b'<') {
        return opened_in_xml(body);
    }
    let result = texts(body, &["/result"])?.pop().flatten();
    result.or_else(|| {
        let mut found = texts(body, &["/result/Status", "/result/Value"])?;
        let value = found.pop().flatten();
        value.filter(|_| found[0].as_deref() == Some("Success"))
    })
}

/// The texts at these places of a body of JSON.
fn texts(body: &[u8], places: &[&str]) -> Option<Vec<Option<String>>> {
    let places = places.iter().map(|it| it.parse().expect("it is a pointer"));
    let pointers = JsonPointers::new(places).ok()?;
    let found = pointers.find(body).ok()?;
    let text = found.iter().map(|it| Some(it?.as_str()?.to_owned()));
    Some(text.collect())
}

/// The value in an answer of XAPI; `None` of a call that failed.
pub(super) fn value_of_xapi(body: &[u8]) -> Option<String> {
    opened(body)
}

/// The state in an answer of XAPI about a task, from its status or its record; the code of the error of a call that
/// failed.
pub(super) fn task_state(body: &[u8]) -> Option<String> {
    let state = opened(body);
    state.or_else(|| match body.trim_ascii_start().first() {
        Some(&b'<') => {
            let text = str::from_utf8(body).ok()?;
            let is_gone = text.contains(GONE_TASK);
            let of_record = || xml_member(text, "status").map(str::to_owned);
            if is_gone {
                Some(GONE_TASK.to_owned())
            } else {
                of_record()
            }
        }
        _ => {
            let places = [
                &["/result/status"][..],
                &["/result/Value/status"],
                &["/error/message"],
                &["/result/ErrorDescription/0"],
            ];
            let mut found = places
                .iter()
                .filter_map(|it| texts(body, it)?.pop().flatten());
            found.next()
        }
    })
}

/// The error of XAPI about a task that it does not know.
const GONE_TASK: &str = "HANDLE_INVALID";

/// The members are looked for as they are written, in any order. What a client has said comes back escaped, so it cannot be one.
fn opened_in_xml(body: &[u8]) -> Option<String> {
    let body = str::from_utf8(body).ok()?;
    let is_success = xml_member(body, "Status") == Some("Success");
    let value = xml_member(body, "Value").filter(|value| is_success && !value.trim().is_empty());
    value.map(str::to_owned)
}

/// The text of the first member with this name.
fn xml_member<'a>(body: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = body.split_once(&format!("<name>{name}</name>"))?;
    let rest = rest.trim_start().strip_prefix("<value>")?.trim_start();
    let (text, _) = rest
        .strip_prefix("<string>")
        .unwrap_or(rest)
        .split_once('<')?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(user: &str) -> CallerNames {
        CallerNames {
            user: user.into(),
            originator: Some("tests".into()),
        }
    }

    #[test]
    fn the_session_is_read_from_each_form_of_an_answer_that_succeeded() {
        let check = |body: &str, session: Option<&str>| {
            assert_eq!(opened(body.as_bytes()).as_deref(), session, "{body}");
        };
        check(
            r#"{"jsonrpc":"2.0","result":"OpaqueRef:1","id":1}"#,
            Some("OpaqueRef:1"),
        );
        check(
            r#"{"result":{"Status":"Success","Value":"OpaqueRef:1"},"error":null,"id":1}"#,
            Some("OpaqueRef:1"),
        );
        check(
            r#"{"result":{"Status":"Failure","ErrorDescription":["SESSION_AUTHENTICATION_FAILED"]},"id":1}"#,
            None,
        );
        check(
            r#"{"jsonrpc":"2.0","error":{"code":1,"message":"SESSION_AUTHENTICATION_FAILED"},"id":1}"#,
            None,
        );
        check("not found", None);
        let member = |name: &str, value: &str| {
            format!("<member><name>{name}</name><value>{value}</value></member>")
        };
        let answer = |members: &str| {
            format!(
                "<?xml version='1.0'?>\n<methodResponse><params><param><value><struct>{members}\
                 </struct></value></param></params></methodResponse>"
            )
        };
        let status = member("Status", "Success");
        let typed = member("Value", "<string>OpaqueRef:1</string>");
        check(&answer(&format!("{status}{typed}")), Some("OpaqueRef:1"));
        check(&answer(&format!("{typed}{status}")), Some("OpaqueRef:1"));
        // As Python writes it.
        let spaced = format!("{status}{typed}").replace("><", ">\n<");
        let spaced = spaced.replace("<value>\n", "<value>");
        check(&answer(&spaced), Some("OpaqueRef:1"));
        let failed = member("Status", "Failure");
        check(&answer(&format!("{failed}{typed}")), None);
        check("<html><body>not found</body></html>", None);
    }

    #[test]
    fn a_session_is_known_until_it_is_closed_or_many_others_are_used() {
        let sessions = Sessions::default();
        let open = |number: usize| sessions.open(&format!("OpaqueRef:{number}"), names("root"));
        open(0);
        for number in 1..20_000 {
            open(number);
            // One that is used stays.
            assert_eq!(
                sessions.names("OpaqueRef:0"),
                Some(names("root")),
                "{number}"
            );
        }
        assert_eq!(sessions.names("OpaqueRef:1"), None);
        let generations = lock(&sessions.0.generations);
        assert!(generations.used.len() + generations.idle.len() <= SESSIONS_MAX);
        drop(generations);
        sessions.close(sessions.hash("OpaqueRef:0"));
        assert_eq!(sessions.names("OpaqueRef:0"), None);
    }
}

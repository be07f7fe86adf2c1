//! Sessions in the messages of a protocol: which calls log in and out, and where they say who.

use std::sync::Arc;

use super::{BodyPlace, CALLER, Found, number_of};
use crate::call::identity;
use crate::call::session::{CallerNames, SessionChange, SessionChangeKind, Sessions};
use crate::options::words;

words! {
    /// A protocol whose clients log in, and then name only their session.
    pub enum SessionProtocol {
        /// XAPI: the first parameter of each other call is the session.
        Xapi = "xapi",
    }
}

/// Methods of XAPI whose answer is a session.
const LOGINS: [&str; 2] = [
    "session.login_with_password",
    "session.slave_local_login_with_password",
];

/// Methods of XAPI after which a session is no more.
const LOGOUTS: [&str; 2] = ["session.logout", "session.local_logout"];

/// The numbers of the values in a body that tell about sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionPlaces {
    /// `None` if the message has no body that is read.
    in_body: Option<PlacesInBody>,
}

#[derive(Clone, Copy, Debug)]
struct PlacesInBody {
    method: usize,
    user: usize,
    originator: usize,
}

/// The session in a message.
pub(super) struct SessionUse {
    /// Whether the key in the message is that of its caller.
    pub(super) has_key: bool,
    /// The change that its answer makes.
    pub(super) change: Option<SessionChange>,
}

impl SessionPlaces {
    /// Adds the places of a protocol to those of a body.
    pub(super) fn new(protocol: SessionProtocol, places: &mut Vec<BodyPlace>) -> Self {
        let SessionProtocol::Xapi = protocol;
        let wanted = match places.first() {
            None => return Self { in_body: None },
            Some(BodyPlace::Json(_)) => ["/method", "/params/0", "/params/3"].map(BodyPlace::json),
            Some(BodyPlace::Xml(_)) => {
                ["methodName", "params/param/0/value", "params/param/3/value"].map(BodyPlace::xml)
            }
        };
        let [method, user, originator] = wanted.map(|place| number_of(&place, places));
        Self {
            in_body: Some(PlacesInBody {
                method,
                user,
                originator,
            }),
        }
    }

    /// The session by the values in a body.
    pub(super) fn read(&self, values: &[Option<Found<'_>>], sessions: &Sessions) -> SessionUse {
        let text = |number: usize| match values.get(number).and_then(Option::as_ref) {
            Some(Found::Text(text)) => Some(&**text),
            _ => None,
        };
        let method = self.in_body.and_then(|it| text(it.method));
        let (Some(places), Some(method)) = (self.in_body, method) else {
            return SessionUse {
                has_key: true,
                change: None,
            };
        };
        let user = text(places.user);
        let is_login = LOGINS.contains(&method);
        let kind = match user {
            Some(user) if is_login => {
                let names = names_of(user, text(places.originator));
                names.map(SessionChangeKind::Opens)
            }
            Some(session) if LOGOUTS.contains(&method) => {
                Some(SessionChangeKind::Closes(sessions.hash(session)))
            }
            _ => None,
        };
        SessionUse {
            has_key: !is_login,
            change: kind.map(|kind| SessionChange {
                sessions: sessions.clone(),
                kind,
            }),
        }
    }
}

/// The names in a login. A user that would look like the key of another caller is none.
fn names_of(user: &str, originator: Option<&str>) -> Option<CallerNames> {
    let user = identity::user(user.as_bytes()).ok().flatten()?;
    let originator = originator.and_then(|it| identity::text(it.as_bytes()).ok().flatten());
    (!user.starts_with(CALLER)).then(|| CallerNames {
        user: user.into(),
        originator: originator.map(Arc::from),
    })
}

//! Calls that are named in a message: the function, the caller and the id of an RPC call come from its body, a header or
//! the query.
//!
//! A body whose function some parser may read differently is unreadable. Such a call may be of any function: it meets the
//! limits of each, or is refused. So no client chooses its limits by its spelling.

pub mod dialects;
mod learnt;
pub(crate) mod options;
mod sessions;
mod sources;
pub(super) mod tasks;

use std::borrow::Cow;
use std::hash::Hasher as _;
use std::sync::Arc;

use http::HeaderName;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::{ANY_FUNCTION, Cost};
use tidegate_message::{JsonNumber, JsonPointers, JsonValue, Unreadable, XmlPaths, XmlText};

pub use self::learnt::LearntNames;
use self::sessions::SessionPlaces;
pub use self::sessions::SessionProtocol;
pub use self::sources::{BodyPlace, Condition, NamePlace, NameSource, PlacesError};
use self::tasks::{TaskPlaces, TaskUse};
use super::OTHER;
use crate::call::claim::{CostRule, ReservedCost};
use crate::call::job_meter::JobMeter;
use crate::call::refusal::{RefusalForm, RefusalTemplate, RequestForm};
use crate::call::session::{CallerNames, SessionChange, Sessions};
use crate::call::{
    AnswerMeter, AnswerPlace, Head, HttpCall, Identity, Origin, Reason, Refusal, RequestBody,
};
use crate::options::kind::function_name;
use crate::options::words;

/// Most calls of a batch.
pub const BATCH_MAX: usize = 1000;

/// Most tokens that a call draws when it goes.
const RESERVED_MAX: TokenCount = TokenCount::from_micros(1_000_000_000_000);

/// The prefix of the name of a caller that a message names.
const CALLER: &str = "key:";

/// The method of MCP whose refusals are results.
const TOOL_CALL: &str = "tools/call";

words! {
    /// The treatment of a JSON array of calls.
    pub enum BatchUse {
        /// The array draws what its calls would draw together.
        Sum = "sum",
        /// The array is refused.
        Refuse = "refuse",
    }

    /// The treatment of a message whose function cannot be known for sure.
    pub enum UnreadableUse {
        /// The message meets the limits of every function.
        All = "all",
        /// The message is refused.
        Refuse = "refuse",
    }
}

/// How the calls of a route are named in their messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSettings {
    /// The function of calls for which no source has a name.
    pub function: Option<Arc<str>>,
    /// The sources of the function: the first that applies.
    pub function_from: Vec<NameSource>,
    /// The source of the caller.
    pub caller_from: Option<NameSource>,
    /// The protocol by which the caller's key is a session.
    pub sessions: Option<SessionProtocol>,
    /// The treatment of a batch.
    pub batch: BatchUse,
    /// The treatment of a message that is unreadable.
    pub unreadable: UnreadableUse,
    /// The form of refusals; `None` is that of the backend's kind.
    pub refuse_as: Option<RefusalForm>,
    /// The place of the cost in answers.
    pub cost_from: Option<AnswerPlace>,
    /// The draw of a call until its answer is here; `None` is what its function costs.
    pub reserve: Option<Reservation>,
    /// Whether its calls may begin tasks of XAPI.
    pub has_tasks: bool,
}

/// The draw of a call until its answer says what it has cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// As much as 95 of 100 calls of its function and class have cost.
    Learned,
    /// The number at the first of these places that has one, or this many tokens. Without either, what its function costs.
    From(Vec<NamePlace>, Option<u32>),
}

/// [`MessageSettings`] prepared for reading.
#[derive(Clone, Debug)]
pub struct MessageReader {
    /// The function of calls without a name.
    function: Arc<str>,
    functions: Vec<CompiledSource>,
    caller: Option<CompiledSource>,
    sessions: Option<SessionPlaces>,
    tasks: Option<TaskPlaces>,
    batch: BatchUse,
    unreadable: UnreadableUse,
    refuse_as: Option<RefusalForm>,
    cost_from: Option<Arc<AnswerPlace>>,
    reserve: Option<CompiledReservation>,
    body: BodyReader,
    /// The number of the value that is the id of the call.
    id: Option<usize>,
    /// The number of the value that says how the call is asked.
    asked: Option<usize>,
}

/// A [`NameSource`] whose values in a body have numbers.
#[derive(Clone, Debug)]
struct CompiledSource {
    place: CompiledPlace,
    condition: Option<(usize, Box<str>)>,
    without: Vec<Box<str>>,
}

/// A [`Reservation`] whose values in a body have numbers.
#[derive(Clone, Debug)]
enum CompiledReservation {
    Learned,
    From(Vec<CompiledPlace>, Option<u64>),
}

#[derive(Clone, Debug)]
enum CompiledPlace {
    Body(usize),
    Header(HeaderName),
    Query(Box<str>),
}

/// The reader of the values in a body.
#[derive(Clone, Debug)]
enum BodyReader {
    /// No value is in the body.
    None,
    Json(JsonPointers),
    Xml(XmlPaths),
}

/// The names in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedCalls {
    /// The function of each call of the message; one, unless the message is a batch.
    functions: Vec<Box<str>>,
    /// The caller: that of its session, or its key, hashed.
    caller: Option<CallerNames>,
    /// The form of a refusal.
    pub refused_as: Option<Box<RefusalTemplate>>,
    /// Why the message must be refused.
    refused: Option<Box<str>>,
    /// The draw of the calls together until they are answered.
    reserved: ReservedTokens,
    /// The place of the cost in the answer.
    cost_place: Option<Arc<AnswerPlace>>,
    /// The session that the answer opens or closes.
    session: Option<SessionChange>,
    /// The task of XAPI that the call begins or asks for.
    pub task: Option<TaskUse>,
}

/// The draw of calls until they are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReservedTokens {
    /// The costs of their functions.
    #[default]
    OfFunction,
    Learned,
    Tokens(u64),
}

impl NamedCalls {
    /// The function whose limits the message meets. A batch of different functions meets the limits of each.
    #[must_use]
    pub fn function(&self) -> &str {
        match &self.functions[..] {
            [first, others @ ..] if others.iter().all(|it| it == first) => first,
            _ => ANY_FUNCTION,
        }
    }

    /// The functions of a batch; none for one call.
    #[must_use]
    pub fn batch(&self) -> &[Box<str>] {
        match &self.functions[..] {
            [_] => &[],
            functions => functions,
        }
    }

    /// Makes the caller that the message names that of the call.
    pub fn name_caller(&mut self, origin: &mut Origin) {
        if let Some(CallerNames { user, originator }) = self.caller.take() {
            origin.identity = Arc::new(Identity {
                user: Some(user),
                originator: originator.or_else(|| origin.identity.originator.clone()),
                ..Identity::clone(&origin.identity)
            });
        }
    }

    /// The reader of the answer, if something in it matters.
    pub fn take_meter(&mut self, job: Option<Box<JobMeter>>) -> Option<Box<AnswerMeter>> {
        AnswerMeter::new(self.cost_place.take(), self.session.take(), job)
    }

    /// Checks that the message may be sent.
    ///
    /// # Errors
    /// If its route refuses it.
    pub fn check(self) -> Result<(), Refusal> {
        match self.refused {
            Some(why) => Err(Refusal::new(Reason::BadRequest, String::from(why))),
            None => Ok(()),
        }
    }

    /// How the cost of a message of this class is found.
    #[must_use]
    pub fn cost_rule(&self, class: &Arc<str>) -> CostRule {
        CostRule {
            reserve: match self.reserved {
                ReservedTokens::OfFunction => ReservedCost::OfFunction,
                ReservedTokens::Learned => ReservedCost::Learned(Arc::clone(class)),
                ReservedTokens::Tokens(count) => {
                    let micros = count.saturating_mul(TokenCount::ONE.micros());
                    ReservedCost::Tokens(TokenCount::from_micros(micros).min(RESERVED_MAX))
                }
            },
            is_answered: self.cost_place.is_some(),
        }
    }

    /// How much of its windows the message draws: 1 for each call.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let calls = u32::try_from(self.functions.len()).unwrap_or(u32::MAX);
        Cost::new(calls).unwrap_or(Cost::ONE)
    }
}

/// A value that was found in a body.
#[derive(Clone, Debug)]
enum Found<'b> {
    Text(Cow<'b, str>),
    Number(JsonNumber<'b>),
    /// A value that names nothing.
    Other,
}

impl MessageReader {
    /// A reader for these settings.
    ///
    /// # Errors
    /// If the places cannot be looked for together.
    pub fn new(settings: &MessageSettings) -> Result<Self, PlacesError> {
        let mut places = Vec::new();
        let functions = settings.function_from.iter();
        let functions = functions.map(|it| compile(it, &mut places)).collect();
        let caller = settings.caller_from.as_ref();
        let caller = caller.map(|it| compile(it, &mut places));
        let form = settings.refuse_as;
        let sessions = settings.sessions;
        let sessions = sessions.map(|it| SessionPlaces::new(it, &mut places));
        let tasks = TaskPlaces::new(settings.has_tasks, &mut places);
        let reads_xml = places.iter().any(|it| matches!(it, BodyPlace::Xml(_)));
        let pointer = |text: &str| BodyPlace::Json(text.parse().expect("it is a pointer"));
        let has_id = matches!(
            form,
            Some(RefusalForm::JsonRpc | RefusalForm::Mcp | RefusalForm::Xapi)
        ) && !reads_xml;
        let id = has_id.then(|| number_of(&pointer("/id"), &mut places));
        let asked = match form {
            Some(RefusalForm::Mcp) => Some("/method"),
            Some(RefusalForm::Xapi) => Some("/jsonrpc"),
            _ => None,
        };
        let asked = asked.filter(|_| has_id);
        let asked = asked.map(|it| number_of(&pointer(it), &mut places));
        let reserve = settings.reserve.as_ref().map(|reserve| match reserve {
            Reservation::Learned => CompiledReservation::Learned,
            Reservation::From(from, otherwise) => CompiledReservation::From(
                from.iter()
                    .map(|it| compile_place(it, &mut places))
                    .collect(),
                otherwise.map(u64::from),
            ),
        });
        Ok(Self {
            function: settings.function.clone().unwrap_or_else(|| OTHER.into()),
            functions,
            caller,
            sessions,
            tasks,
            batch: settings.batch,
            unreadable: settings.unreadable,
            refuse_as: form,
            cost_from: settings.cost_from.clone().map(Arc::new),
            reserve,
            body: BodyReader::new(places)?,
            id,
            asked,
        })
    }

    /// Whether the body of a request has some of the names.
    pub(super) fn needs_body(&self) -> bool {
        !matches!(self.body, BodyReader::None)
    }

    /// Whether the names in a request depend on nothing but its head.
    pub(super) fn is_of_head(&self) -> bool {
        !self.needs_body() && self.sessions.is_none()
    }

    /// The names in a request.
    pub(super) fn read(&self, call: &HttpCall, sessions: &Sessions) -> NamedCalls {
        let mut names = NamedCalls::default();
        if let Err(why) = self.read_names(call, sessions, &mut names) {
            names = self.unreadable(call, sessions, &why);
        }
        names.cost_place.clone_from(&self.cost_from);
        if let Some(CompiledReservation::Learned) = self.reserve {
            names.reserved = ReservedTokens::Learned;
        }
        if let Some(form) = self.refuse_as {
            let refused_as = names.refused_as.get_or_insert_default();
            refused_as.form = form;
            if matches!(self.body, BodyReader::Xml(_)) {
                refused_as.request = RequestForm::Xml;
            }
        }
        names
    }

    /// The names of a message that cannot be read: it may be of any function. A caller that the body does not decide is
    /// known nevertheless.
    fn unreadable(&self, call: &HttpCall, sessions: &Sessions, why: &str) -> NamedCalls {
        let of_head = self.caller.as_ref().filter(|source| source.is_of_head());
        let caller = of_head.and_then(|source| source.name(&call.head, &[]).ok().flatten());
        let refused = match self.unreadable {
            _ if self.may_be_batch(call) => Some("so the number of its calls is not known"),
            UnreadableUse::Refuse => Some("so its function is not known"),
            UnreadableUse::All => None,
        };
        let reserved = match &self.reserve {
            Some(CompiledReservation::From(_, Some(tokens))) => ReservedTokens::Tokens(*tokens),
            _ => ReservedTokens::OfFunction,
        };
        NamedCalls {
            functions: vec![ANY_FUNCTION.into()],
            caller: caller.map(|key| self.caller_of(&key, sessions)),
            refused_as: None,
            reserved,
            cost_place: None,
            session: None,
            task: None,
            refused: refused
                .map(|so| format!("the message cannot be read for sure: {why}, {so}").into()),
        }
    }

    /// Whether some parser may read a message as an array of calls. Only what begins with an object is none.
    fn may_be_batch(&self, call: &HttpCall) -> bool {
        let begins = match &call.body {
            RequestBody::Whole(body) => body,
            RequestBody::Streamed { read, .. } => read,
        };
        let is_object = begins.trim_ascii_start().first() == Some(&b'{');
        match self.body {
            BodyReader::Json(_) => !is_object || check_encoding(&call.head).is_err(),
            BodyReader::None | BodyReader::Xml(_) => false,
        }
    }

    fn read_names(
        &self,
        call: &HttpCall,
        sessions: &Sessions,
        names: &mut NamedCalls,
    ) -> Result<(), String> {
        let head = &call.head;
        let body = match (&self.body, &call.body) {
            (BodyReader::None, _) => {
                return self.take(head, &[], sessions, names);
            }
            (_, RequestBody::Whole(body)) => body,
            (_, RequestBody::Streamed { .. }) => {
                return Err("the body is larger than buffer_bytes".to_owned());
            }
        };
        check_encoding(head)?;
        let wrong = |unreadable: Unreadable| unreadable.to_string();
        match &self.body {
            BodyReader::None => {}
            BodyReader::Xml(paths) => {
                let found = paths.find(body).map_err(wrong)?;
                let values: Vec<_> = found.iter().map(|text| text.map(Found::of_xml)).collect();
                self.take(head, &values, sessions, names)?;
            }
            BodyReader::Json(pointers) if tidegate_message::is_batch(body) => {
                if self.batch == BatchUse::Refuse {
                    let why = "an array of calls is refused here: send each call by itself";
                    names.refused = Some(why.into());
                    names.functions = vec![ANY_FUNCTION.into()];
                    return Ok(());
                }
                let mut taken = Ok(());
                let each = |found: tidegate_message::FoundValues<'_>| {
                    let values: Vec<_> = found.iter().map(|it| it.map(Found::of_json)).collect();
                    let this = self.take(head, &values, sessions, names);
                    if taken.is_ok() {
                        taken = this;
                    }
                };
                pointers.find_each(body, BATCH_MAX, each).map_err(wrong)?;
                taken?;
                // Each of the calls has an id of its own, and an answer of its own inside that of the batch.
                names.refused_as = None;
                names.session = None;
                names.task = None;
            }
            BodyReader::Json(pointers) => {
                let found = pointers.find(body).map_err(wrong)?;
                let values: Vec<_> = found.iter().map(|it| it.map(Found::of_json)).collect();
                self.take(head, &values, sessions, names)?;
            }
        }
        Ok(())
    }

    /// Takes the names of one call from the values in its body.
    fn take(
        &self,
        head: &Head,
        values: &[Option<Found<'_>>],
        sessions: &Sessions,
        names: &mut NamedCalls,
    ) -> Result<(), String> {
        let mut sources = self.functions.iter();
        let name = match sources.find(|source| source.applies(values)) {
            Some(source) => source.name(head, values)?,
            None => None,
        };
        // A name that no config can have is one of all the others.
        let name = name.filter(|name| function_name(name).is_ok());
        names
            .functions
            .push(name.as_deref().unwrap_or(&self.function).into());
        let session = self.sessions.map(|it| it.read(values, sessions));
        let has_key = session.as_ref().is_none_or(|session| session.has_key);
        names.session = session.and_then(|session| session.change);
        names.task = self.tasks.and_then(|it| it.read(values));
        if let Some(caller) = &self.caller
            && names.caller.is_none()
            && has_key
        {
            let key = caller.name(head, values)?;
            names.caller = key.map(|key| self.caller_of(&key, sessions));
        }
        if let Some(CompiledReservation::From(places, otherwise)) = &self.reserve
            && let Some(more) = number_at(places, head, values)?.or(*otherwise)
        {
            names.reserved = names.reserved.with(more);
        }
        let value = |number: Option<usize>| values.get(number?)?.as_ref();
        if let Some(id) = value(self.id) {
            names.refused_as = Some(Box::new(RefusalTemplate {
                id: id.as_json(),
                request: self.request_form(value(self.asked)),
                ..RefusalTemplate::default()
            }));
        }
        Ok(())
    }

    /// The caller with a key. That of a session is known once its login has passed here.
    fn caller_of(&self, key: &str, sessions: &Sessions) -> CallerNames {
        let of_session = self.sessions.and_then(|_| sessions.names(key));
        of_session.unwrap_or_else(|| CallerNames {
            user: hashed(key),
            originator: None,
        })
    }

    fn request_form(&self, value: Option<&Found<'_>>) -> RequestForm {
        let is = |text: &str| value.is_some_and(|value| value.is(text));
        match self.refuse_as {
            Some(RefusalForm::Mcp) if is(TOOL_CALL) => RequestForm::ToolCall,
            Some(RefusalForm::Xapi) if !is("2.0") => RequestForm::JsonRpc1,
            _ => RequestForm::Usual,
        }
    }
}

/// Gives the values of a source their numbers.
fn compile(source: &NameSource, places: &mut Vec<BodyPlace>) -> CompiledSource {
    let condition = source.condition.as_ref();
    CompiledSource {
        place: compile_place(&source.place, places),
        condition: condition.map(|it| (number_of(&it.place, places), it.is.clone())),
        without: source.without.clone(),
    }
}

fn compile_place(place: &NamePlace, places: &mut Vec<BodyPlace>) -> CompiledPlace {
    match place {
        NamePlace::Body(place) => CompiledPlace::Body(number_of(place, places)),
        NamePlace::Header(name) => CompiledPlace::Header(name.clone()),
        NamePlace::Query(name) => CompiledPlace::Query(name.clone()),
    }
}

/// The number at the first place that has one.
fn number_at(
    places: &[CompiledPlace],
    head: &Head,
    values: &[Option<Found<'_>>],
) -> Result<Option<u64>, String> {
    for place in places {
        let number = match place {
            CompiledPlace::Body(number) => match values.get(*number).and_then(Option::as_ref) {
                Some(Found::Number(number)) => number.as_u64(),
                _ => None,
            },
            place => place.text(head)?.and_then(|text| text.trim().parse().ok()),
        };
        if number.is_some() {
            return Ok(number);
        }
    }
    Ok(None)
}

impl ReservedTokens {
    /// The sum for one more call.
    fn with(self, more: u64) -> Self {
        match self {
            Self::Tokens(tokens) => Self::Tokens(tokens.saturating_add(more)),
            Self::OfFunction | Self::Learned => Self::Tokens(more),
        }
    }
}

fn number_of(place: &BodyPlace, places: &mut Vec<BodyPlace>) -> usize {
    let known = places.iter().position(|it| it == place);
    known.unwrap_or_else(|| {
        places.push(place.clone());
        places.len() - 1
    })
}

impl CompiledSource {
    /// Whether the head of a request has the name.
    fn is_of_head(&self) -> bool {
        let is_in_body = matches!(self.place, CompiledPlace::Body(_));
        !is_in_body && self.condition.is_none()
    }

    fn applies(&self, values: &[Option<Found<'_>>]) -> bool {
        self.condition.as_ref().is_none_or(|(number, wanted)| {
            let found = values.get(*number).and_then(Option::as_ref);
            found.is_some_and(|found| found.is(wanted))
        })
    }

    fn name<'a>(
        &'a self,
        head: &'a Head,
        values: &'a [Option<Found<'a>>],
    ) -> Result<Option<Cow<'a, str>>, String> {
        let name = match &self.place {
            CompiledPlace::Body(number) => match values.get(*number).and_then(Option::as_ref) {
                Some(Found::Text(text)) => Some(Cow::Borrowed(&**text)),
                Some(Found::Number(_) | Found::Other) | None => None,
            },
            place => place.text(head)?,
        };
        Ok(name.map(|name| sources::without(name, &self.without)))
    }
}

impl CompiledPlace {
    /// The text in the head of a request; none of a place in its body.
    fn text<'a>(&'a self, head: &'a Head) -> Result<Option<Cow<'a, str>>, String> {
        match self {
            Self::Body(_) => Ok(None),
            Self::Header(name) => {
                let value = head.headers.only(name.as_str());
                let value = value.map_err(|_| format!("the header {name} is there twice"))?;
                Ok(value.map(String::from_utf8_lossy))
            }
            Self::Query(name) => {
                let query = head.query().unwrap_or_default();
                Ok(sources::in_query(query, name)?)
            }
        }
    }
}

impl BodyReader {
    fn new(places: Vec<BodyPlace>) -> Result<Self, PlacesError> {
        let (mut pointers, mut paths) = (Vec::new(), Vec::new());
        for place in places {
            match place {
                BodyPlace::Json(pointer) => pointers.push(pointer),
                BodyPlace::Xml(path) => paths.push(path),
            }
        }
        match (pointers.is_empty(), paths.is_empty()) {
            (true, true) => Ok(Self::None),
            (false, true) => Ok(Self::Json(JsonPointers::new(pointers)?)),
            (true, false) => Ok(Self::Xml(XmlPaths::new(paths)?)),
            (false, false) => Err(PlacesError::TwoForms),
        }
    }
}

impl<'b> Found<'b> {
    fn of_json(value: &JsonValue<'b>) -> Self {
        match value {
            JsonValue::String(text) => Self::Text(text.clone()),
            JsonValue::Number(number) => Self::Number(*number),
            JsonValue::Null | JsonValue::Bool(_) | JsonValue::Array | JsonValue::Object => {
                Self::Other
            }
        }
    }

    fn of_xml(text: &XmlText<'b>) -> Self {
        match text {
            XmlText::Text(text) => Self::Text(text.clone()),
            XmlText::Nested => Self::Other,
        }
    }

    fn is(&self, text: &str) -> bool {
        matches!(self, Self::Text(found) if found == text)
    }

    /// The value as JSON, if it can be an id.
    fn as_json(&self) -> Option<Box<str>> {
        match self {
            Self::Text(text) => serde_json::to_string(text).ok().map(Into::into),
            Self::Number(number) => Some(number.as_str().into()),
            Self::Other => None,
        }
    }
}

/// Checks that a body is text as it stands.
fn check_encoding(head: &Head) -> Result<(), String> {
    let unclear = || "its encoding is given twice".to_owned();
    let encoding = head.headers.only(CONTENT_ENCODING.as_str());
    if encoding
        .map_err(|_| unclear())?
        .is_some_and(|it| !it.eq_ignore_ascii_case(b"identity"))
    {
        return Err("it has a Content-Encoding".to_owned());
    }
    let kind = head.headers.only(CONTENT_TYPE.as_str());
    let kind = kind
        .map_err(|_| unclear())?
        .unwrap_or_default()
        .to_ascii_lowercase();
    let kind = String::from_utf8_lossy(&kind);
    let parameters = kind.split(';').skip(1).filter_map(|it| it.split_once('='));
    let mut charsets = parameters.filter(|(name, _)| name.trim() == "charset");
    let is_utf8 = |value: &str| {
        let value = value.trim().trim_matches(['"', '\'']);
        ["utf-8", "utf8", "us-ascii"].contains(&value)
    };
    match charsets.all(|(_, value)| is_utf8(value)) {
        true => Ok(()),
        false => Err("its charset is not UTF-8".to_owned()),
    }
}

/// The name of a caller whose key a message has. The key may be a secret, so only its hash is kept.
fn hashed(key: &str) -> Arc<str> {
    let mut hasher = SipHasher24::new();
    hasher.write(key.as_bytes());
    format!("{CALLER}{:016x}", hasher.finish128().h1).into()
}

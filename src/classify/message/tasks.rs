//! Tasks in the messages of XAPI: which calls begin one, and which ask for one.

use super::{BodyPlace, Found, number_of};
use crate::call::job::XapiForm;

/// The beginnings of methods whose work goes on behind their answer.
const BEGINNINGS: [&str; 2] = ["Async.", "InternalAsync."];

/// Methods whose answer says the state of the task that is their second parameter.
const POLLS: [&str; 2] = ["task.get_status", "task.get_record"];

/// The part of a call in a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskUse {
    /// The call begins one, in this session.
    Begins {
        /// The session.
        session: Box<str>,
        /// The form of the call.
        form: XapiForm,
    },
    /// The call asks for the state of this one.
    Asks(Box<str>),
}

/// The numbers of the values in a body that tell about tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPlaces {
    form: XapiForm,
    method: usize,
    session: usize,
    task: usize,
}

impl TaskPlaces {
    /// Adds the places to those of a body; `None` if tasks are not followed, or the message has no body that is read.
    pub(super) fn new(is_on: bool, places: &mut Vec<BodyPlace>) -> Option<Self> {
        if !is_on {
            return None;
        }
        let (form, wanted) = match places.first()? {
            BodyPlace::Json(_) => (
                XapiForm::Json,
                ["/method", "/params/0", "/params/1"].map(BodyPlace::json),
            ),
            BodyPlace::Xml(_) => {
                let wanted = ["methodName", "params/param/0/value", "params/param/1/value"];
                (XapiForm::Xml, wanted.map(BodyPlace::xml))
            }
        };
        let [method, session, task] = wanted.map(|place| number_of(&place, places));
        Some(Self {
            form,
            method,
            session,
            task,
        })
    }

    /// The task by the values in a body.
    pub(super) fn read(self, values: &[Option<Found<'_>>]) -> Option<TaskUse> {
        let text = |number: usize| match values.get(number).and_then(Option::as_ref) {
            Some(Found::Text(text)) => Some(&**text),
            _ => None,
        };
        let method = text(self.method)?;
        if POLLS.contains(&method) {
            return Some(TaskUse::Asks(text(self.task)?.into()));
        }
        let begins = BEGINNINGS.iter().any(|it| method.starts_with(it));
        begins.then_some(TaskUse::Begins {
            session: text(self.session)?.into(),
            form: self.form,
        })
    }
}

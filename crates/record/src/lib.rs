//! The fields of Tidegate's logs.
//!
//! Each field of a line is defined once: its name, its type with the unit, its meaning, and the first version that has
//! it ([`call`], [`gate`], [`step`]). The definition makes the fast writer of a line, the one reader ([`read`]),
//! which takes any spelling of JSON, and the tables of docs/reference/access-log.md. [`wrapped`] takes lines out of what
//! Docker, the journal and Kubernetes wrap them in.

pub mod call;
pub mod digits;
mod fields;
pub mod gate;
pub mod kind;
mod line;
pub mod step;
pub mod wrapped;

pub use self::call::{CallLine, CallRecord};
pub use self::fields::FieldDefinition;
pub use self::gate::{GateEvent, GateLine, GateRecord};
pub use self::line::{LogLine, LogStream, SCHEMA, read};
pub use self::step::{GateStep, StepKind, StepValue};
pub use self::wrapped::{Content, LINE_MAX, Unwrapper, WRAPPED_MAX};

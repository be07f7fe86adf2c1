//! Where the z/VM SDK server is plugged in: the only module that names its crate.
//!
//! Stages ask a [`BackendKind`] what is known of the backend's functions, routes and paths. Another
//! kind of backend with a table of its own is another variant here.

use std::borrow::Cow;

pub use tidegate_zvm::array::{self, ArrayCall, BadArray, FUNCTION_NAME_BYTES_MAX};
pub use tidegate_zvm::framer::{self, FrameError, FrameStatus, Framer};
pub use tidegate_zvm::functions::{Effort, Function, FunctionKind};
use tidegate_zvm::path::{self, EncodedSlash};
pub use tidegate_zvm::path::{Path, hides_a_slash};
pub use tidegate_zvm::reply;
pub use tidegate_zvm::routes::{BodyRule, RouteMatch, RouteRow, RouteTarget};
use tidegate_zvm::{functions, routes};

use super::OnClientLeft;
use crate::options::words;

words! {
    /// The kind of the server behind, and with that what is known of it before the config says anything.
    #[derive(Default, Hash)]
    pub enum BackendKind {
        /// The z/VM SDK server: its functions and routes are known.
        #[default]
        Zvm = "zvm",
        /// Any other: only routes and functions of the config are known.
        Http = "http",
    }
}

impl BackendKind {
    /// Whether its clients read errors in a form of its own.
    #[must_use]
    pub fn has_errors_of_its_own(self) -> bool {
        self == Self::Zvm
    }

    /// Whether it reads the fields that name a client, such as `X-Forwarded-For`, and may believe them.
    #[must_use]
    pub fn reads_forwarded_fields(self) -> bool {
        self == Self::Http
    }

    /// The fate of its calls when their client leaves, unless the config says otherwise. The work of the z/VM SDK
    /// server goes on, whatever happens to its connection.
    #[must_use]
    pub fn on_client_left(self) -> OnClientLeft {
        match self {
            Self::Zvm => OnClientLeft::Finish,
            Self::Http => OnClientLeft::Close,
        }
    }

    /// Whether its functions and routes are known.
    #[must_use]
    pub fn has_table(self) -> bool {
        self == Self::Zvm
    }

    /// The functions of the server, by name.
    #[must_use]
    pub fn functions(self) -> &'static [Function] {
        match self {
            Self::Zvm => functions::FUNCTIONS,
            Self::Http => &[],
        }
    }

    /// The function of this name.
    #[must_use]
    pub fn function(self, name: &str) -> Option<&'static Function> {
        match self {
            Self::Zvm => functions::function(name),
            Self::Http => None,
        }
    }

    /// The routes of the server. The first that matches counts.
    #[must_use]
    pub fn routes(self) -> &'static [RouteRow] {
        match self {
            Self::Zvm => routes::ROUTES,
            Self::Http => &[],
        }
    }

    /// The function that a request asks for.
    #[must_use]
    pub fn route<'a>(self, method: &str, path: &'a str) -> RouteMatch<'a> {
        match self {
            Self::Zvm => routes::route(method, path),
            Self::Http => RouteMatch::Other,
        }
    }

    /// The path as it reads it.
    #[must_use]
    pub fn path_as_read(self, path: &str) -> Cow<'_, str> {
        path::as_read(path, self.encoded_slash())
    }

    /// Whether some server of this kind may read the path as one for which the test holds.
    pub fn any_reading(self, path: &str, test: impl FnMut(&str) -> bool) -> bool {
        path::any_reading(path, self.encoded_slash(), test)
    }

    fn encoded_slash(self) -> EncodedSlash {
        match self {
            Self::Zvm => EncodedSlash::Separates,
            Self::Http => EncodedSlash::IsData,
        }
    }

    /// Whether `POST /` with an array is a call of the socket protocol.
    #[must_use]
    pub fn takes_arrays_over_http(self) -> bool {
        self == Self::Zvm
    }
}

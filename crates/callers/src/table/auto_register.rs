//! The number of callers that may register themselves.

use crate::bounds::AUTO_REGISTER_MAX;
use crate::error::TableError;

/// How many callers may register themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AutoRegister(pub(super) u32);

impl AutoRegister {
    /// Automatic registration is off.
    pub const OFF: Self = Self(0);
    /// The maximum: 10,000.
    pub const MAX: Self = Self(AUTO_REGISTER_MAX);

    /// The config's form: 0 is off, a negative number is the maximum.
    ///
    /// # Errors
    ///
    /// If it is above the maximum.
    pub fn from_config(given: i64) -> Result<Self, TableError> {
        if given < 0 {
            return Ok(Self::MAX);
        }
        u32::try_from(given)
            .ok()
            .filter(|rows| *rows <= AUTO_REGISTER_MAX)
            .map(Self)
            .ok_or(TableError::AutoRegister { given })
    }

    /// The maximum number of rows.
    #[must_use]
    pub const fn rows(self) -> u32 {
        self.0
    }
}

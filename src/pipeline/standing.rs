//! The place of a waiting call, for its own client.

use super::Pipeline;
use crate::call::{Identity, LooksExceeded, QueueStanding};
use crate::tasks::Owner;

impl Pipeline {
    /// Where a waiting call stands, for this client if it is its own.
    pub(super) fn find_standing(
        &self,
        call: u64,
        client: Option<&Identity>,
    ) -> Result<Option<QueueStanding>, LooksExceeded> {
        let found = self.gate.place(call)?;
        Ok(found.and_then(|(standing, record)| {
            let is_own = |client| {
                let owner = record?.note(|facts| Owner::of(&facts.origin.identity));
                Some(owner == Owner::of(client))
            };
            client
                .is_none_or(|client| is_own(client) == Some(true))
                .then_some(standing)
        }))
    }
}

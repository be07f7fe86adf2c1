//! The part of a book that decides its next grants, for a search that tells states apart.
//!
//! The order of demands, the sums, the heap and its entries follow from the rows, so the rows are enough.

use core::hash::{Hash, Hasher};

use super::super::Holder;
use super::{Book, RowDemand};

impl Book {
    /// Hashes the row of a holder.
    pub(crate) fn hash_row(&self, holder: Holder, hasher: &mut impl Hasher) {
        let Some(row) = self.rows.get(holder.0 as usize) else {
            return;
        };
        match &row.wants {
            RowDemand::Nothing => 0_u64.hash(hasher),
            demand => demand.bands(|bands| {
                for band in bands {
                    let wants = band.wants.get().to_bits();
                    (1, band.priority, band.clients, wants).hash(hasher);
                }
            }),
        }
        (row.granted.to_bits(), row.expires).hash(hasher);
        let outgoing = row.outgoing.iter().flat_map(|outgoing| outgoing.steps());
        for step in outgoing {
            (step.amount.to_bits(), step.until).hash(hasher);
        }
    }

    /// The holders of which something counts.
    pub(crate) fn counted_holders(&self) -> impl Iterator<Item = Holder> {
        let rows = self.rows.iter().zip(0..);
        rows.filter(|(row, _)| row.next().is_some())
            .map(|(_, place)| Holder(place))
    }
}

//! Whether a request makes sense and keeps within the bounds. One that does not is refused whole.

use std::collections::HashSet;
use std::num::NonZeroU64;

use crate::book::{Band, Capacity};
use crate::wire;

use super::rejected::Rejected;
use super::settings::ServerBounds;

/// A resource of a request, checked.
pub(super) struct CheckedRequest<'a> {
    pub(super) id: &'a str,
    pub(super) bands: Vec<Band>,
    pub(super) has: Option<&'a wire::Lease>,
}

pub(super) fn check_client<'a>(
    request: &'a wire::GetCapacityRequest,
    bounds: &ServerBounds,
) -> Result<Vec<CheckedRequest<'a>>, Rejected> {
    let resources = request.resource.iter();
    let resources = resources.map(|asked| (&*asked.resource_id, asked.has.as_ref(), asked));
    check_id("client_id", &request.client_id, bounds)?;
    check(resources, bounds.leases_per_client, bounds, |id, asked| {
        let band = Band {
            priority: asked.priority,
            clients: NonZeroU64::MIN,
            wants: amount("wants", id, asked.wants)?,
        };
        Ok(vec![band])
    })
}

pub(super) fn check_server<'a>(
    request: &'a wire::GetServerCapacityRequest,
    bounds: &ServerBounds,
) -> Result<Vec<CheckedRequest<'a>>, Rejected> {
    let resources = request.resource.iter();
    let resources = resources.map(|asked| (&*asked.resource_id, asked.has.as_ref(), asked));
    check_id("server_id", &request.server_id, bounds)?;
    check(resources, bounds.resources, bounds, |id, asked| {
        let resource = || id.to_owned();
        if asked.wants.is_empty() {
            return Err(Rejected::NoBand {
                resource: resource(),
            });
        }
        if asked.wants.len() > bounds.bands {
            return Err(Rejected::ManyBands {
                resource: resource(),
                given: asked.wants.len(),
                max: bounds.bands,
            });
        }
        let bands = asked.wants.iter().enumerate().map(|(at, band)| {
            let clients = u64::try_from(band.num_clients).ok();
            let clients = clients.and_then(NonZeroU64::new);
            Ok(Band {
                priority: band.priority,
                clients: clients.ok_or_else(|| Rejected::NoClients {
                    field: format!("wants[{at}].num_clients"),
                    resource: resource(),
                    given: band.num_clients,
                })?,
                wants: amount(&format!("wants[{at}].wants"), id, band.wants)?,
            })
        });
        bands.collect()
    })
}

/// Checks the resources of a request: the id of each, what it reports to have, and its bands.
fn check<'a, R>(
    resources: impl ExactSizeIterator<Item = (&'a str, Option<&'a wire::Lease>, R)>,
    max: usize,
    bounds: &ServerBounds,
    bands: impl Fn(&str, R) -> Result<Vec<Band>, Rejected>,
) -> Result<Vec<CheckedRequest<'a>>, Rejected> {
    let given = resources.len();
    if given > max {
        return Err(Rejected::LongRequest { given, max });
    }
    let mut seen = HashSet::with_capacity(given);
    resources
        .enumerate()
        .map(|(at, (id, has, asked))| {
            if id.is_empty() || id.len() > bounds.id_bytes {
                check_id(&format!("resource[{at}].resource_id"), id, bounds)?;
            }
            if !seen.insert(id) {
                return Err(Rejected::Twice {
                    resource: id.to_owned(),
                });
            }
            if let Some(has) = has {
                amount("has.capacity", id, has.capacity)?;
            }
            let bands = bands(id, asked)?;
            Ok(CheckedRequest { id, bands, has })
        })
        .collect()
}

fn check_id(field: &str, id: &str, bounds: &ServerBounds) -> Result<(), Rejected> {
    if id.is_empty() {
        return Err(Rejected::EmptyId {
            field: field.to_owned(),
        });
    }
    if id.len() > bounds.id_bytes {
        return Err(Rejected::LongId {
            field: field.to_owned(),
            bytes: id.len(),
            bytes_max: bounds.id_bytes,
        });
    }
    Ok(())
}

fn amount(field: &str, resource: &str, given: f64) -> Result<Capacity, Rejected> {
    Capacity::new(given).map_err(|_| Rejected::NoAmount {
        field: field.to_owned(),
        resource: resource.to_owned(),
        given,
    })
}

//! Whether a request makes sense and keeps within the bounds. One that does not is refused whole.

use std::collections::HashSet;
use std::num::NonZeroU64;

use crate::book::{Band, Capacity};
use crate::wire;

use super::rejected::Rejected;
use super::settings::Bounds;

/// One resource of a request, checked.
pub(super) struct Wish<'a> {
    pub(super) id: &'a str,
    pub(super) bands: Vec<Band>,
    pub(super) has: Option<&'a wire::Lease>,
}

pub(super) fn check_client<'a>(
    request: &'a wire::GetCapacityRequest,
    bounds: &Bounds,
) -> Result<Vec<Wish<'a>>, Rejected> {
    check_id("client_id", &request.client_id, bounds)?;
    check_length(request.resource.len(), bounds.leases_per_client)?;
    let mut seen = HashSet::with_capacity(request.resource.len());
    request
        .resource
        .iter()
        .enumerate()
        .map(|(at, asked)| {
            let id = asked.resource_id.as_str();
            check_resource(at, id, asked.has.as_ref(), &mut seen, bounds)?;
            let band = Band {
                priority: asked.priority,
                clients: NonZeroU64::MIN,
                wants: amount("wants", id, asked.wants)?,
            };
            Ok(Wish {
                id,
                bands: vec![band],
                has: asked.has.as_ref(),
            })
        })
        .collect()
}

pub(super) fn check_server<'a>(
    request: &'a wire::GetServerCapacityRequest,
    bounds: &Bounds,
) -> Result<Vec<Wish<'a>>, Rejected> {
    check_id("server_id", &request.server_id, bounds)?;
    check_length(request.resource.len(), bounds.resources)?;
    let mut seen = HashSet::with_capacity(request.resource.len());
    request
        .resource
        .iter()
        .enumerate()
        .map(|(at, asked)| {
            let id = asked.resource_id.as_str();
            check_resource(at, id, asked.has.as_ref(), &mut seen, bounds)?;
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
                Ok(Band {
                    priority: band.priority,
                    clients: clients.and_then(NonZeroU64::new).ok_or_else(|| {
                        Rejected::NoClients {
                            field: format!("wants[{at}].num_clients"),
                            resource: resource(),
                            given: band.num_clients,
                        }
                    })?,
                    wants: amount(&format!("wants[{at}].wants"), id, band.wants)?,
                })
            });
            Ok(Wish {
                id,
                bands: bands.collect::<Result<_, _>>()?,
                has: asked.has.as_ref(),
            })
        })
        .collect()
}

fn check_length(given: usize, max: usize) -> Result<(), Rejected> {
    if given > max {
        return Err(Rejected::LongRequest { given, max });
    }
    Ok(())
}

fn check_id(field: &str, id: &str, bounds: &Bounds) -> Result<(), Rejected> {
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

fn check_resource<'a>(
    at: usize,
    id: &'a str,
    has: Option<&wire::Lease>,
    seen: &mut HashSet<&'a str>,
    bounds: &Bounds,
) -> Result<(), Rejected> {
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
    Ok(())
}

fn amount(field: &str, resource: &str, given: f64) -> Result<Capacity, Rejected> {
    Capacity::new(given).map_err(|_| Rejected::NoAmount {
        field: field.to_owned(),
        resource: resource.to_owned(),
        given,
    })
}

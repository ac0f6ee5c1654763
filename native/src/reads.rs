//! Reads that an owner may answer at once. What is true of a partition is asked of Python's own objects
//! each time: nothing is kept here.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

const KEY_BYTES_MAX: usize = 64 * 1024;
const EXPIRY_BYTES: usize = 8;

enum Found<'py> {
    /// Only a request can answer.
    Unknown,
    Missing,
    Stored(Bound<'py, PyBytes>),
}

/// Stored values of an engine. One that keeps values in memory shows them as `recent`, and a value that is
/// there is what its `get` would return.
pub struct Values<'a, 'py> {
    engine: &'a Bound<'py, PyAny>,
    recent: Option<Bound<'py, PyDict>>,
}

impl<'a, 'py> Values<'a, 'py> {
    pub fn of(engine: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        let recent = engine.getattr_opt(intern!(engine.py(), "recent"))?;
        Ok(Self { engine, recent: recent.and_then(|recent| recent.cast_into_exact::<PyDict>().ok()) })
    }

    pub fn get(&self, data_key: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(recent) = &self.recent {
            if let Some(stored) = recent.get_item(data_key)? {
                return Ok(stored);
            }
        }
        self.engine.call_method1(intern!(data_key.py(), "get"), (data_key,))
    }
}

/// What all reads of one call have in common.
struct Reads<'a, 'py> {
    replicas: &'a Bound<'py, PyDict>,
    keyspace: &'a Bound<'py, PyBytes>,
    serving: &'a Bound<'py, PyAny>,
    leased: &'a Bound<'py, PyAny>,
    values: Values<'a, 'py>,
    now_ms: u64,
}

impl<'py> Reads<'_, 'py> {
    fn find(&self, partition: &Bound<'py, PyAny>, key: &Bound<'py, PyBytes>) -> PyResult<Found<'py>> {
        let py = partition.py();
        let Some(replica) = self.replicas.get_item(partition)? else {
            return Ok(Found::Unknown);
        };
        if key.as_bytes().len() > KEY_BYTES_MAX || !self.serves(&replica)? {
            return Ok(Found::Unknown);
        }
        let data_key = self.data_key(&replica, key)?;
        let pending = replica.getattr(intern!(py, "pending"))?;
        if pending.cast::<PyDict>()?.contains(&data_key)? {
            return Ok(Found::Unknown);
        }
        let locks = replica.getattr(intern!(py, "locks"))?;
        if !locks.is_none() && locks.contains((self.keyspace, key))? {
            return Ok(Found::Unknown);
        }
        self.stored(&data_key)
    }

    /// Whether the applied data has every acknowledged write: it is the owner and has leases.
    fn serves(&self, replica: &Bound<'py, PyAny>) -> PyResult<bool> {
        let py = replica.py();
        let owner = replica.getattr(intern!(py, "owner"))?;
        if owner.is_none()
            || !owner.getattr(intern!(py, "phase"))?.is(self.serving)
            || owner.getattr(intern!(py, "frozen"))?.is_truthy()?
        {
            return Ok(false);
        }
        let others = owner.getattr(intern!(py, "waited_for"))?;
        Ok(others.cast::<PyTuple>()?.is_empty() || self.leased.call1((replica, owner))?.is_truthy()?)
    }

    fn data_key(
        &self,
        replica: &Bound<'py, PyAny>,
        key: &Bound<'py, PyBytes>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let py = replica.py();
        let prefixes = replica.getattr(intern!(py, "prefixes"))?;
        let prefix = match prefixes.cast::<PyDict>()?.get_item(self.keyspace)? {
            Some(prefix) => prefix,
            None => replica.call_method1(intern!(py, "prefix"), (self.keyspace,))?,
        };
        let (prefix, key) = (prefix.cast::<PyBytes>()?.as_bytes(), key.as_bytes());
        PyBytes::new_with(py, prefix.len() + key.len(), |place| {
            if let Some((begin, end)) = place.split_at_mut_checked(prefix.len()) {
                begin.copy_from_slice(prefix);
                end.copy_from_slice(key);
            }
            Ok(())
        })
    }

    fn stored(&self, data_key: &Bound<'py, PyBytes>) -> PyResult<Found<'py>> {
        let stored = self.values.get(data_key)?;
        if stored.is_none() {
            return Ok(Found::Missing);
        }
        let stored = stored.cast_into::<PyBytes>()?;
        let expire_at_ms =
            stored.as_bytes().first_chunk::<EXPIRY_BYTES>().map_or(0, |head| u64::from_be_bytes(*head));
        let expired = 0 < expire_at_ms && expire_at_ms <= self.now_ms;
        Ok(if expired { Found::Missing } else { Found::Stored(stored) })
    }
}

/// Return replies to the leading reads that fit into `room` bytes, and the bytes left; None when one of
/// them takes a request. `serving` is the phase of an owner that serves; `leased` says whether a replica
/// with others has their leases.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn read_now<'py>(
    replicas: &Bound<'py, PyDict>,
    keyspace: &Bound<'py, PyBytes>,
    partitions: &Bound<'py, PyList>,
    keys: &Bound<'py, PyList>,
    serving: &Bound<'py, PyAny>,
    leased: &Bound<'py, PyAny>,
    engine: &Bound<'py, PyAny>,
    now_ms: u64,
    room: i64,
) -> PyResult<Option<(Bound<'py, PyList>, i64)>> {
    let py = replicas.py();
    let reads = Reads { replicas, keyspace, serving, leased, values: Values::of(engine)?, now_ms };
    let (mut room, mut replies) = (room, Vec::with_capacity(keys.len()));
    for (partition, key) in partitions.iter().zip(keys.iter()) {
        match reads.find(&partition, key.cast::<PyBytes>()?)? {
            Found::Unknown => return Ok(None),
            Found::Missing => replies.push(None),
            Found::Stored(stored) => {
                let bytes = stored.as_bytes();
                replies.push(Some(PyBytes::new(py, bytes.get(EXPIRY_BYTES..).unwrap_or_default())));
                room -= bytes.len() as i64;
                if room <= 0 {
                    break;
                }
            }
        }
    }
    Ok(Some((PyList::new(py, replies)?, room)))
}

//! Applies committed operations that store a value.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::reads::Values;
use crate::records::{joined, Parts, PUT};

/// Change of the number of entries of one keyspace, and of their bytes.
struct Change<'py> {
    keyspace: Bound<'py, PyBytes>,
    entries: i64,
    bytes: i64,
}

impl Change<'_> {
    fn add_to(self, totals: &Bound<'_, PyDict>) -> PyResult<()> {
        let (entries, bytes) = match totals.get_item(&self.keyspace)? {
            Some(before) => before.extract::<(i64, i64)>()?,
            None => (0, 0),
        };
        totals.set_item(&self.keyspace, (entries + self.entries, bytes + self.bytes))
    }
}

/// Apply the run of stored values after operation `index`, up to `last` and until they have `bytes_max`;
/// return the last one's index, and their bytes. Values go into `fresh`, old ones are looked up there, then
/// in `engine`; `totals` counts entries; `changes` lists (index, suffix of the data key) if it is given.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn apply_puts<'py>(
    records: &Bound<'py, PyDict>,
    index: u64,
    last: u64,
    head: &Bound<'py, PyBytes>,
    fresh: &Bound<'py, PyDict>,
    totals: &Bound<'py, PyDict>,
    engine: &Bound<'py, PyAny>,
    changes: Option<&Bound<'py, PyList>>,
    bytes_max: usize,
) -> PyResult<(u64, usize)> {
    let py = records.py();
    let values = Values::of(engine)?;
    let (mut index, mut size) = (index, 0);
    let mut counted: Option<Change<'py>> = None;
    while index < last && size < bytes_max {
        let Some(record) = records.get_item(index + 1)? else {
            break;
        };
        let record = record.cast_into::<PyBytes>()?;
        let bytes = record.as_bytes();
        let Some(parts) = Parts::of(bytes).filter(|parts| parts.kind == PUT) else {
            break;
        };
        index += 1;
        size += bytes.len();
        let data_key = joined(py, &[head.as_bytes(), &parts.length, parts.keyspace, parts.key])?;
        let old = match fresh.get_item(&data_key)? {
            Some(old) => old,
            None => values.get(&data_key)?,
        };
        let new = joined(py, &[&parts.expiry, parts.value])?;
        let old_bytes = if old.is_none() { None } else { Some(old.len()? as i64) };
        let new_bytes = new.as_bytes().len() as i64;
        if old_bytes != Some(new_bytes) {
            let mut change = match counted.take() {
                Some(change) if change.keyspace.as_bytes() == parts.keyspace => change,
                other => {
                    other.map(|change| change.add_to(totals)).transpose()?;
                    Change { keyspace: PyBytes::new(py, parts.keyspace), entries: 0, bytes: 0 }
                }
            };
            let key_bytes = parts.key.len() as i64;
            change.entries += i64::from(old_bytes.is_none());
            change.bytes += new_bytes + key_bytes - old_bytes.map_or(0, |old_bytes| old_bytes + key_bytes);
            counted = Some(change);
        }
        fresh.set_item(&data_key, new)?;
        if let Some(changes) = changes {
            changes.append((index, joined(py, &[&parts.length, parts.keyspace, parts.key])?))?;
        }
    }
    counted.map(|change| change.add_to(totals)).transpose()?;
    Ok((index, size))
}

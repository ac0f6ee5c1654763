//! Records of the log. Layout, big-endian: term (8), kind (1), expire_at_ms (8), length of keyspace (1),
//! length of key (4), then keyspace, key and value.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const KIND_AT: usize = 8;
const EXPIRY_AT: usize = 9;
const KEYSPACE_AT: usize = 17;
const HEAD_BYTES: usize = 22;
pub const PUT: u8 = 1;

/// Encode the operation that stores a value.
#[pyfunction]
pub fn put_record<'py>(
    py: Python<'py>,
    term: u64,
    keyspace: &[u8],
    key: &[u8],
    value: &[u8],
    expire_at_ms: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let keyspace_bytes = u8::try_from(keyspace.len()).map_err(|_| too_long("keyspace", keyspace))?;
    let key_bytes = u32::try_from(key.len()).map_err(|_| too_long("key", key))?;
    let parts: [&[u8]; 8] = [
        &term.to_be_bytes(),
        &[PUT],
        &expire_at_ms.to_be_bytes(),
        &[keyspace_bytes],
        &key_bytes.to_be_bytes(),
        keyspace,
        key,
        value,
    ];
    joined(py, &parts)
}

fn too_long(what: &str, bytes: &[u8]) -> PyErr {
    PyValueError::new_err(format!("{what} of {} bytes is too long for a log record", bytes.len()))
}

pub fn joined<'py>(py: Python<'py>, parts: &[&[u8]]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, parts.iter().map(|part| part.len()).sum(), |place| {
        let mut left = place;
        for part in parts {
            let (begin, rest) = left.split_at_mut_checked(part.len()).ok_or_else(cut)?;
            begin.copy_from_slice(part);
            left = rest;
        }
        Ok(())
    })
}

fn cut() -> PyErr {
    PyValueError::new_err(format!("log record is shorter than its head of {HEAD_BYTES} bytes"))
}

/// A record's parts. One that ends before its keyspace or key does has shorter ones, as slices of Python
/// are.
pub struct Parts<'a> {
    pub kind: u8,
    pub expiry: [u8; 8],
    /// The announced length of the keyspace, as it is encoded.
    pub length: [u8; 1],
    pub keyspace: &'a [u8],
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> Parts<'a> {
    pub fn of(record: &'a [u8]) -> Option<Self> {
        let (head, rest) = record.split_at_checked(HEAD_BYTES)?;
        let length = [*head.get(KEYSPACE_AT)?];
        let (keyspace, rest) = rest.split_at(rest.len().min(usize::from(length[0])));
        let key_bytes = u32::from_be_bytes(head.get(KEYSPACE_AT + 1..)?.try_into().ok()?);
        let (key, value) = rest.split_at(rest.len().min(key_bytes as usize));
        let expiry = head.get(EXPIRY_AT..KEYSPACE_AT)?.try_into().ok()?;
        Some(Self { kind: *head.get(KIND_AT)?, expiry, length, keyspace, key, value })
    }
}

/// Decode a record into (kind, keyspace, key, value, expire_at_ms).
#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn split_record<'py>(
    record: &Bound<'py, PyBytes>,
) -> PyResult<(u8, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, u64)> {
    let (py, parts) = (record.py(), Parts::of(record.as_bytes()).ok_or_else(cut)?);
    let bytes = |part| PyBytes::new(py, part);
    let expire_at_ms = u64::from_be_bytes(parts.expiry);
    Ok((parts.kind, bytes(parts.keyspace), bytes(parts.key), bytes(parts.value), expire_at_ms))
}

/// Return (data key after the tablet's prefix and USER, stored value) of a PUT.
#[pyfunction]
pub fn split_put<'py>(record: &Bound<'py, PyBytes>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let (py, parts) = (record.py(), Parts::of(record.as_bytes()).ok_or_else(cut)?);
    Ok((joined(py, &[&parts.length, parts.keyspace, parts.key])?, joined(py, &[&parts.expiry, parts.value])?))
}

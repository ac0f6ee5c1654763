//! Which partition has a key: slots are those of Redis Cluster.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::resp::arguments;

const SLOTS: u64 = 16384;

/// Remainders of CRC16/XMODEM for each byte.
const REMAINDERS: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 0x8000 == 0 { rest << 1 } else { (rest << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

/// Return the bytes to hash: those between the first `{` and the next `}` if there are any, else the key.
fn hashed_part(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|begin| {
        let rest = key.get(begin + 1..)?;
        rest.get(..rest.iter().position(|&byte| byte == b'}')?)
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn slot(key: &[u8]) -> u64 {
    let crc = hashed_part(key)
        .iter()
        .fold(0u16, |crc, &byte| (crc << 8) ^ REMAINDERS[usize::from((crc >> 8) as u8 ^ byte)]);
    u64::from(crc) % SLOTS
}

/// Return which of `count` partitions from `first` on has each key.
#[pyfunction]
pub fn partitions_of<'py>(keys: &Bound<'py, PyList>, first: u32, count: u32) -> PyResult<Bound<'py, PyList>> {
    let mut found = Vec::with_capacity(keys.len());
    for key in keys.iter() {
        found.push(partition(key.cast::<PyBytes>()?.as_bytes(), first, count));
    }
    PyList::new(keys.py(), found)
}

fn partition(key: &[u8], first: u32, count: u32) -> u64 {
    u64::from(first) + slot(key) * u64::from(count) / SLOTS
}

/// Return key and partition of one GET, None unless the bytes are that and nothing else.
#[pyfunction]
pub fn one_get<'py>(
    data: &Bound<'py, PyBytes>,
    first: u32,
    count: u32,
) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
    let bytes = data.as_bytes();
    let mut found = Vec::with_capacity(2);
    if arguments(bytes, 0, &mut found) != Some(bytes.len()) {
        return Ok(None);
    }
    let [name, key] = found.as_slice() else {
        return Ok(None);
    };
    if !matches!(bytes.get(name.clone()), Some(b"GET" | b"get")) {
        return Ok(None);
    }
    let key = bytes.get(key.clone()).unwrap_or_default();
    Ok(Some((PyBytes::new(data.py(), key), partition(key, first, count))))
}

/// Return keys and partitions of the first `most` requests, None unless they all are a GET of one key.
#[pyfunction]
pub fn gets<'py>(
    requests: &Bound<'py, PyList>,
    most: usize,
    first: u32,
    count: u32,
) -> PyResult<Option<(Bound<'py, PyList>, Bound<'py, PyList>)>> {
    let py = requests.py();
    let (mut keys, mut partitions) = (Vec::with_capacity(16), Vec::with_capacity(16));
    for request in requests.iter().take(most) {
        let request = request.cast_into::<PyList>()?;
        if request.len() != 2 {
            return Ok(None);
        }
        let name = request.get_item(0)?;
        if !matches!(name.cast::<PyBytes>()?.as_bytes(), b"GET" | b"get") {
            return Ok(None);
        }
        let key = request.get_item(1)?.cast_into::<PyBytes>()?;
        partitions.push(partition(key.as_bytes(), first, count));
        keys.push(key);
    }
    Ok(Some((PyList::new(py, keys)?, PyList::new(py, partitions)?)))
}

//! RESP: requests in, replies out.

use std::ops::Range;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList};

/// Requests of more arguments, or longer ones, are left to the caller. Together they stay within its limit
/// of 64 MiB for a request.
const ARGUMENTS_MAX: usize = 1024;
const ARGUMENT_BYTES_MAX: usize = 64 * 1024;
const DIGITS_MAX: usize = 6;

const OK: &[u8] = b"+OK\r\n";
const CRLF: &[u8] = b"\r\n";

/// Return the number of a header such as `$12`, and where the next line begins; None when it is incomplete
/// or wrong.
fn header(data: &[u8], at: usize, mark: u8) -> Option<(usize, usize)> {
    let line = data.get(at..)?;
    if *line.first()? != mark {
        return None;
    }
    let mut number = 0;
    for digits in 0..=DIGITS_MAX {
        match *line.get(1 + digits)? {
            digit @ b'0'..=b'9' => number = number * 10 + usize::from(digit - b'0'),
            b'\r' if digits > 0 && *line.get(2 + digits)? == b'\n' => return Some((number, at + 3 + digits)),
            _ => return None,
        }
    }
    None
}

/// Find the arguments of the request at `at`; return where the next one begins, None when it has to be
/// left.
pub fn arguments(data: &[u8], at: usize, found: &mut Vec<Range<usize>>) -> Option<usize> {
    found.clear();
    let (count, mut at) = header(data, at, b'*')?;
    if !(1..=ARGUMENTS_MAX).contains(&count) {
        return None;
    }
    for _ in 0..count {
        let (length, begin) = header(data, at, b'$')?;
        let end = begin + length;
        if length > ARGUMENT_BYTES_MAX || data.get(end..end + 2)? != CRLF {
            return None;
        }
        found.push(begin..end);
        at = end + 2;
    }
    Some(at)
}

/// Append the leading requests that are complete and common; return where the rest begins.
#[pyfunction]
pub fn split(data: &Bound<'_, PyBytes>, requests: &Bound<'_, PyList>) -> PyResult<usize> {
    let (py, bytes) = (data.py(), data.as_bytes());
    let (mut at, mut found) = (0, Vec::with_capacity(4));
    while let Some(after) = arguments(bytes, at, &mut found) {
        let args = found.iter().map(|each| PyBytes::new(py, bytes.get(each.clone()).unwrap_or_default()));
        requests.append(PyList::new(py, args)?)?;
        at = after;
    }
    Ok(at)
}

/// A reply that is encoded here.
enum Common<'a> {
    Ok,
    Nil,
    Number(i64),
    Value(&'a [u8]),
}

fn digits(mut number: u64) -> usize {
    let mut found = 1;
    while number > 9 {
        number /= 10;
        found += 1;
    }
    found
}

impl Common<'_> {
    fn size(&self, nil: &[u8]) -> usize {
        match self {
            Common::Ok => OK.len(),
            Common::Nil => nil.len(),
            Common::Number(number) => 3 + usize::from(*number < 0) + digits(number.unsigned_abs()),
            Common::Value(value) => 5 + digits(value.len() as u64) + value.len(),
        }
    }

    fn write(&self, nil: &[u8], out: &mut Writer<'_>) {
        match self {
            Common::Ok => out.put(OK),
            Common::Nil => out.put(nil),
            Common::Number(number) => {
                out.put(if *number < 0 { b":-" } else { b":" });
                out.number(number.unsigned_abs());
                out.put(CRLF);
            }
            Common::Value(value) => {
                out.put(b"$");
                out.number(value.len() as u64);
                out.put(CRLF);
                out.put(value);
                out.put(CRLF);
            }
        }
    }
}

/// Fills bytes from the front. What does not fit is dropped: sizes are computed before.
struct Writer<'a> {
    left: &'a mut [u8],
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let left = std::mem::take(&mut self.left);
        if let Some((place, rest)) = left.split_at_mut_checked(bytes.len()) {
            place.copy_from_slice(bytes);
            self.left = rest;
        }
    }

    fn number(&mut self, mut number: u64) {
        let mut text = [b'0'; 20];
        let mut begin = text.len();
        while let Some(place) = begin.checked_sub(1).and_then(|at| text.get_mut(at)) {
            *place = b'0' + (number % 10) as u8;
            begin -= 1;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.put(text.get(begin..).unwrap_or_default());
    }
}

/// Encode replies; None when one of them is neither `ok` itself, nor nil, a number or bytes.
#[pyfunction]
pub fn encode_replies<'py>(
    replies: &Bound<'py, PyList>,
    ok: &Bound<'py, PyAny>,
    resp3: bool,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let py = replies.py();
    let nil: &[u8] = if resp3 { b"_\r\n" } else { b"$-1\r\n" };
    let items: Vec<Bound<'py, PyAny>> = replies.iter().collect();
    let mut common = Vec::with_capacity(items.len());
    let mut size = 0;
    for item in &items {
        let reply = if item.is(ok) {
            Common::Ok
        } else if let Ok(value) = item.cast_exact::<PyBytes>() {
            Common::Value(value.as_bytes())
        } else if item.is_none() {
            Common::Nil
        } else if let Ok(number) = item.cast_exact::<PyInt>() {
            match number.extract::<i64>() {
                Ok(number) => Common::Number(number),
                Err(error) if error.is_instance_of::<PyOverflowError>(py) => return Ok(None),
                Err(error) => return Err(error),
            }
        } else {
            return Ok(None);
        };
        size += reply.size(nil);
        common.push(reply);
    }
    PyBytes::new_with(py, size, |place| {
        let mut out = Writer { left: place };
        common.iter().for_each(|reply| reply.write(nil, &mut out));
        Ok(())
    })
    .map(Some)
}

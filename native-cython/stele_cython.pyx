# cython: language_level=3, boundscheck=True, wraparound=False, overflowcheck=True, cdivision=False
"""What a member does for each byte and each command, in Cython. Bytes of others are only indexed with checks."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef Py_ssize_t ARGUMENTS_MAX = 1024
cdef Py_ssize_t ARGUMENT_BYTES_MAX = 64 * 1024
cdef int DIGITS_MAX = 6

cdef uint16_t REMAINDERS[256]


cdef void _fill() noexcept:
    cdef int byte, bit
    cdef uint32_t rest
    for byte in range(256):
        rest = byte << 8
        for bit in range(8):
            rest = ((rest << 1) ^ 0x1021 if rest & 0x8000 else rest << 1) & 0xFFFF
        REMAINDERS[byte] = <uint16_t> rest


_fill()


cdef struct Header:
    Py_ssize_t number
    Py_ssize_t after


cdef Header _header(bytes data, Py_ssize_t at, Py_ssize_t size, unsigned char mark) except *:
    """Return the number of a header, and where the next line begins; `after` is 0 when it is to be left."""
    cdef Header found = Header(0, 0)
    cdef Py_ssize_t place = at + 1, digits = 0
    cdef unsigned char byte
    if at >= size or <unsigned char> data[at] != mark:
        return found
    while place + 1 < size:
        byte = <unsigned char> data[place]
        if 48 <= byte <= 57 and digits < DIGITS_MAX:
            found.number = found.number * 10 + (byte - 48)
            digits += 1
            place += 1
        elif byte == 13 and digits and <unsigned char> data[place + 1] == 10:
            found.after = place + 2
            return found
        else:
            return found
    return found


def split(bytes data not None, list requests not None):
    """Append the leading requests that are complete and common; return where the rest begins."""
    cdef Py_ssize_t size = len(data), at = 0, begin, end, count, place
    cdef Header head
    cdef list args
    while True:
        head = _header(data, at, size, 42)
        count = head.number
        if not head.after or not 1 <= count <= ARGUMENTS_MAX:
            return at
        begin = head.after
        args = []
        for _ in range(count):
            head = _header(data, begin, size, 36)
            if not head.after or head.number > ARGUMENT_BYTES_MAX:
                return at
            end = head.after + head.number
            if end + 2 > size or <unsigned char> data[end] != 13 or <unsigned char> data[end + 1] != 10:
                return at
            args.append(data[head.after : end])
            begin = end + 2
        requests.append(args)
        at = begin


cdef bytes _reply(object reply, object ok, bytes nil):
    if reply is ok:
        return b"+OK\r\n"
    if reply is None:
        return nil
    if type(reply) is int:
        return b":%d\r\n" % reply
    return None


cdef int _digits(uint64_t number) noexcept:
    cdef int found = 1
    while number > 9:
        number //= 10
        found += 1
    return found


def encode_replies(list replies not None, object ok, bint resp3):
    """Encode replies; None when one of them is neither `ok` itself, nor nil, a number or bytes."""
    cdef bytes nil = b"_\r\n" if resp3 else b"$-1\r\n"
    cdef Py_ssize_t size = 0, length, at = 0, begin
    cdef list parts = []
    cdef object reply
    cdef bytes part, out
    cdef int digits
    cdef char *place
    for reply in replies:
        if type(reply) is bytes:
            parts.append(reply)
            length = PyBytes_GET_SIZE(reply)
            size += 5 + _digits(length) + length
        else:
            part = _reply(reply, ok, nil)
            if part is None:
                return None
            parts.append((part,))
            size += len(part)
    out = PyBytes_FromStringAndSize(NULL, size)
    place = PyBytes_AS_STRING(out)
    for reply in parts:
        if type(reply) is bytes:
            length = PyBytes_GET_SIZE(reply)
            digits = _digits(length)
            place[at] = 36
            begin = length
            for index in range(digits):
                place[at + digits - index] = 48 + begin % 10
                begin //= 10
            at += digits + 1
            memcpy(place + at, b"\r\n", 2)
            memcpy(place + at + 2, PyBytes_AS_STRING(reply), length)
            at += 2 + length
            memcpy(place + at, b"\r\n", 2)
            at += 2
        else:
            part = (<tuple> reply)[0]
            memcpy(place + at, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
            at += PyBytes_GET_SIZE(part)
    return out


cdef uint32_t _slot(bytes key) except? 99999:
    cdef Py_ssize_t begin, end, at
    cdef uint32_t crc = 0
    begin = key.find(b"{") if b"{" in key else -1
    end = key.find(b"}", begin + 1) if begin >= 0 else -1
    if begin >= 0 and end > begin + 1:
        begin += 1
    else:
        begin, end = 0, len(key)
    for at in range(begin, end):
        crc = ((crc << 8) & 0xFFFF) ^ REMAINDERS[(crc >> 8) ^ <unsigned char> key[at]]
    return crc % 16384


def partitions_of(list keys not None, uint64_t first, uint64_t count):
    """Return which of `count` partitions from `first` on has each key."""
    cdef bytes key
    cdef list found = []
    for key in keys:
        found.append(first + _slot(key) * count // 16384)
    return found


def gets(list requests not None, Py_ssize_t most, uint64_t first, uint64_t count):
    """Return keys and partitions of the first `most` requests, None unless they all are a GET of one key."""
    cdef list keys = [], partitions = [], request
    cdef bytes name, key
    cdef Py_ssize_t at
    for at in range(min(most, len(requests))):
        request = requests[at]
        if len(request) != 2:
            return None
        name = request[0]
        if name != b"GET" and name != b"get":
            return None
        key = request[1]
        keys.append(key)
        partitions.append(first + _slot(key) * count // 16384)
    return keys, partitions


cdef void _number(char *place, uint64_t number, int size) noexcept:
    cdef int at
    for at in range(size):
        place[size - 1 - at] = <char> (number & 0xFF)
        number >>= 8


cdef void _part(char **place, bytes part) noexcept:
    memcpy(place[0], PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
    place[0] += PyBytes_GET_SIZE(part)


def put_record(uint64_t term, bytes keyspace not None, bytes key not None, bytes value not None, uint64_t expire_at_ms):
    """Encode the operation that stores a value."""
    cdef bytes out
    cdef char *place
    if len(keyspace) > 255 or len(key) > 0xFFFFFFFF:
        raise ValueError("keyspace or key is too long for a log record")
    out = PyBytes_FromStringAndSize(NULL, 22 + len(keyspace) + len(key) + len(value))
    place = PyBytes_AS_STRING(out)
    _number(place, term, 8)
    place[8] = 1
    _number(place + 9, expire_at_ms, 8)
    _number(place + 17, len(keyspace), 1)
    _number(place + 18, len(key), 4)
    place += 22
    _part(&place, keyspace)
    _part(&place, key)
    _part(&place, value)
    return out


cdef Py_ssize_t _ends(bytes record, Py_ssize_t *keyspace_end) except -1:
    cdef Py_ssize_t end
    if len(record) < 22:
        raise ValueError("log record is shorter than its keyspace and key")
    keyspace_end[0] = 22 + <unsigned char> record[17]
    end = keyspace_end[0] + (
        (<Py_ssize_t> <unsigned char> record[18] << 24) | (<unsigned char> record[19] << 16)
        | (<unsigned char> record[20] << 8) | <unsigned char> record[21]
    )
    if end > len(record):
        raise ValueError("log record is shorter than its keyspace and key")
    return end


def split_record(bytes record not None):
    """Decode a record into (kind, keyspace, key, value, expire_at_ms)."""
    cdef Py_ssize_t middle = 0, end = _ends(record, &middle)
    cdef uint64_t expire = 0
    cdef int at
    for at in range(9, 17):
        expire = (expire << 8) | <unsigned char> record[at]
    return <unsigned char> record[8], record[22:middle], record[middle:end], record[end:], expire


def split_put(bytes record not None):
    """Return (data key after the tablet's prefix and USER, stored value) of a PUT."""
    cdef Py_ssize_t middle = 0, end = _ends(record, &middle)
    return record[17:18] + record[22:end], record[9:17] + record[end:]

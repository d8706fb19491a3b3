-- The compact log's commonest items, "allow" under one limit, answered as the driver would
-- in half the time: no function or table is made, so the bytes of numbers are put
-- together and taken apart where they are needed. The first that is out of the ordinary,
-- and all after it, go on to compact.lua, which describes the value.

-- Below LARGE units, and so records, three bytes are enough for a count.
local units, width

while true do
	local op, own, calls = ARGV[at], ARGV[at + 2], 1
	if not op then
		return reply
	end
	if op ~= 'a' then
		calls = string.match(op, '^a(%d+)$')
		calls = calls and calls + 0
	end
	if own == '1' then
		units = ARGV[at + 3] + 0
		width = ARGV[at + 4] + 0
	end
	if not calls or own > '1' then
		break
	end

	local n, name, horizon = ARGV[at + 1] + 0, KEYS[key], now - width
	local text = call('GETRANGE', name, '0', '298')
	local used, newest, tail, oldest, first, room = 0, 0, 0, 0, 0, 0
	local oldest_text -- as it's stored, if it's another than the head's
	if text ~= '' then
		local mark, u7, u6, u5, u4, u3, u2, u1, n7, n6, n5, n4, n3, n2, n1, _, _, _, _, t3, t2, t1,
			o7, o6, o5, o4, o3, o2, o1, _, _, _, _, f3, f2, f1, _, _, _, r4, r3, r2, r1 = byte(text, 1, HEAD)
		if mark ~= 1 or not r1 or u7 + u6 + u5 + u4 + r4 > 0 then
			break
		end
		newest = (((((n7 * 256 + n6) * 256 + n5) * 256 + n4) * 256 + n3) * 256 + n2) * 256 + n1
		if newest > now then
			break
		end
		if newest > horizon then
			used = (u3 * 256 + u2) * 256 + u1
			tail = (t3 * 256 + t2) * 256 + t1
			oldest = (((((o7 * 256 + o6) * 256 + o5) * 256 + o4) * 256 + o3) * 256 + o2) * 256 + o1
			first = (f3 * 256 + f2) * 256 + f1
			room = (r3 * 256 + r2) * 256 + r1
		end
	end
	if used > 0 and oldest <= horizon then
		-- Passes over records that no longer count, if they are a few.
		local page, from = text, HEAD + 1
		if tail > SMALL then
			page, from = call('GETRANGE', name, format('%d', HEAD + 8 * first), format('%d', HEAD + 8 * first + 63)), 1
		end
		local last = math.min(#page, from + 63)
		while from < last do
			local o7, o6, o5, o4, o3, o2, o1, weight = byte(page, from, from + 7)
			oldest = (((((o7 * 256 + o6) * 256 + o5) * 256 + o4) * 256 + o3) * 256 + o2) * 256 + o1
			if oldest > horizon then
				oldest_text = sub(page, from, from + 6)
				break
			end
			if weight > 15 then
				weight = math.ldexp(weight % 16, (weight - weight % 16) / 4)
			end
			used = used - weight
			first = first + 1
			from = from + 8
		end
		if not oldest_text then
			break
		end
	end

	local left, granted = units - used, 0
	if n <= left then
		granted = n
		if calls > 1 then
			granted = math.min(n * calls, left - left % n)
		end
	end
	local total = used + granted
	local excess = n - (units - total) -- what must end first for another such call
	if n > units then
		excess = 0
	end
	if excess > 1 and excess < total or total >= LARGE then
		break
	end

	if granted > 0 then
		-- The records to add.
		local a = now % 256
		local rest = (now - a) / 256
		local b = rest % 256
		rest = (rest - b) / 256
		local c = rest % 256
		rest = (rest - c) / 256
		local d = rest % 256
		rest = (rest - d) / 256
		local e = rest % 256
		rest = (rest - e) / 256
		local f = rest % 256
		local stamp, place, entry = char((rest - f) / 256, f, e, d, c, b, a), 0, ''
		rest = granted
		while rest > 0 do
			local digit = rest % 16
			if digit > 0 then
				entry = entry .. stamp .. char(place + digit)
			end
			rest = (rest - digit) / 16
			place = place + 16
		end
		newest = now
		if used == 0 then
			oldest, oldest_text = now, stamp
		end

		-- The head up to tail; a value written anew begins with the first record that counts.
		local lifetime = format('%d', math.max(1, math.ceil(width / 1000)))
		local last = tail + #entry / 8
		local anew = last <= SMALL or last > room or first > room / 2
		local stored = last
		if anew then
			stored = last - first
		end
		a = total % 256
		b = (total - a) / 256 % 256
		c = stored % 256
		d = (stored - c) / 256 % 256
		local head = char(1, 0, 0, 0, 0, (total - b * 256 - a) / 65536, b, a) .. stamp ..
			char(0, 0, 0, 0, (stored - d * 256 - c) / 65536, d, c)
		if not anew then
			if oldest_text then
				a = first % 256
				b = (first - a) / 256 % 256
				head = head .. oldest_text .. char(0, 0, 0, 0, (first - b * 256 - a) / 65536, b, a)
			end
			call('SETRANGE', name, format('%d', HEAD + 8 * tail), entry)
			call('SETRANGE', name, '0', head)
			call('PEXPIRE', name, lifetime)
		else
			local log, space, size
			if tail > SMALL then
				log = call('GETRANGE', name, format('%d', HEAD + 8 * first), format('%d', HEAD + 8 * tail - 1))
			else
				log = sub(text, HEAD + 8 * first + 1, HEAD + 8 * tail)
			end
			if #log < 8 * (tail - first) then
				break
			end
			if stored > SMALL then
				-- A quarter more than is needed.
				local more = 8 + math.floor(stored / 4)
				room = stored + more
				a = room % 256
				b = (room - a) / 256 % 256
				space, size = string.rep('\0', 8 * more), char(0, 0, 0, 0, (room - b * 256 - a) / 65536, b, a)
			else
				space, size = '', ZERO
			end
			call('SET', name, head .. (oldest_text or sub(text, 23, 29)) .. ZERO .. size .. log .. entry .. space, 'PX', lifetime)
		end
	elseif used > 0 and call('PTTL', name) == -1 then
		call('PEXPIRE', name, format('%d', math.max(1, math.ceil((newest + width - now) / 1000))))
	end
	reply[size + 1] = granted
	reply[size + 2] = total
	reply[size + 3] = excess > 0 and (excess == 1 and oldest or newest) + width - now or 0
	reply[size + 4] = total > 0 and newest + width - now or 0
	size = size + 4
	at = at + 3
	if own == '1' then
		at = at + 3
	end
	key = key + 1
	index = index + 1
end

if units then
	limits = {{units = units, width = width, keys = 1, at = 0, used = 0, slot = 0}}
	total = 1
end

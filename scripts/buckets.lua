-- Sliding buckets: at most units in every span of a window. The window is cut
-- into S slots of width microseconds; the current slot and the S before it are
-- counted whole, so what is counted reaches back a window and up to a slot more.
--
-- KEYS  S+1 keys a limit: <prefix>:<policy>:sb1.<S>:<window µs>:{<subject>}:<0…S>
--       slot i of the grid [i*width, (i+1)*width) lives in key i mod (S+1),
--       a string: units charged in it, as 16 digits; its base; its number i
-- Uses  GET MGET SET SETRANGE DEL
--
-- Reading S+1 keys is what costs. So the newest slot is open: its base, 16
-- digits, is what the S slots before it hold, and a call in the same slot reads
-- that one key. A call a few slots later looks back for it, and meets on its way just
-- the slots that have left the window since, in the keys of those that came. All other
-- slots are closed, their base is dashes. A slot is opened by the first charge in it,
-- which closes the one before; giving back closes. Once a window all is read anew,
-- so that a key lost to eviction is not missed for ever.
--
-- A stored slot later than the clock's own (the clock was set back) goes on
-- being the current one: state never moves back. A value that isn't of this
-- form counts as none and is written over.

local CLOSED = '----------------'
local grid = true

-- Reads all slots. limit.slot is the current one, limit.count its units,
-- limit.counts has slot i's at i mod (S+1), plus 1; limit.open is the place there of
-- the open slot, which may be long past, and limit.current says that it's the current one.
local function load(limit)
	local keys, top = limit.keys, floor(now / limit.width)
	local values = call('MGET', unpack(KEYS, limit.at, limit.at + keys - 1))
	local slots, counts = {}, {}
	limit.open = nil
	for i = 1, keys do
		local value = values[i]
		local slot = value and tonumber(sub(value, 33))
		if slot then
			slots[i] = slot
			if slot > top then
				top = slot
			end
			if sub(value, 17, 17) ~= '-' then
				limit.open = i
			end
		end
	end
	local used, last = 0, top - keys
	for i = 1, keys do
		local count = 0
		if slots[i] and slots[i] > last then
			count = tonumber(sub(values[i], 1, 16), 10)
			used = used + count
		end
		counts[i] = count
	end
	local place = top % keys + 1
	limit.slot, limit.counts, limit.count, limit.used = top, counts, counts[place], used
	limit.current = limit.open == place and slots[place] == top
end

-- How many slots back an open slot is looked for. Keys live so much longer.
local function reach(limit)
	return math.min(3, floor((limit.keys - 1) / 4))
end

local function read(limit)
	local keys, now_slot, left = limit.keys, floor(now / limit.width), 0
	local last = now_slot - reach(limit)
	for slot = now_slot, last, -1 do
		local value = call('GET', KEYS[limit.at + slot % keys])
		local stored = value and tonumber(sub(value, 33))
		if stored == slot then
			local base = tonumber(sub(value, 17, 32), 10)
			if not base then
				break
			end
			local count = tonumber(sub(value, 1, 16), 10)
			limit.slot, limit.counts, limit.used, limit.open = now_slot, nil, base + count - left, slot % keys + 1
			limit.current = slot == now_slot
			limit.count = limit.current and count or 0
			return
		elseif stored == slot - keys then
			left = left + tonumber(sub(value, 1, 16), 10)
		elseif stored and stored > slot then
			break
		end
		if slot % keys == 0 then
			break
		end
	end
	load(limit)
end

local function wait(limit, n)
	local excess = n - (limit.units - limit.used)
	if excess <= 0 then
		return 0
	end
	local keys, slot = limit.keys, limit.slot
	if excess < limit.used or limit.count == 0 then
		if not limit.counts then
			load(limit)
		end
		-- From the oldest, until enough is gone.
		local counts, first = limit.counts, slot - keys + 1
		for i = first, slot do
			local count = counts[i % keys + 1]
			if count > 0 then
				excess = excess - count
				slot = i
				if excess <= 0 then
					break
				end
			end
		end
	end
	return (slot + keys) * limit.width - now
end

-- Gives back n units as charge does.
local function back(limit, n, when)
	if not limit.counts then
		load(limit)
	end
	local keys, counts = limit.keys, limit.counts
	local newest, oldest = limit.slot, limit.slot - keys + 1
	local first, last, step = newest, oldest, -1
	n = math.min(n, limit.used) -- a slot may have been found missing just now
	if when == 'oldest' then
		first, last, step = oldest, newest, 1
	elseif when then
		first = floor(when / limit.width)
		last = first
		if first < oldest or first > newest then
			return 0
		end
		n = math.min(n, counts[first % keys + 1])
	end
	if n == 0 then
		return 0
	end
	limit.used = limit.used - n
	local left = n
	for slot = first, last, step do
		local place = slot % keys + 1
		local take = math.min(left, counts[place])
		if take > 0 then
			counts[place] = counts[place] - take
			local key = KEYS[limit.at + place - 1]
			if counts[place] > 0 then
				call('SETRANGE', key, '0', format('%016d', counts[place]))
			else
				call('DEL', key)
				if limit.open == place then
					limit.open = nil
				end
			end
		end
		left = left - take
		if left == 0 then
			break
		end
	end
	if limit.open then
		call('SETRANGE', KEYS[limit.at + limit.open - 1], '16', CLOSED)
		limit.open = nil
	end
	limit.count, limit.current = counts[newest % keys + 1], false
	return n
end

local function charge(limit, n, _, when)
	if n < 0 then
		return back(limit, -n, when)
	end
	limit.used = limit.used + n
	local place = limit.slot % limit.keys + 1
	local key, counts = KEYS[limit.at + place - 1], limit.counts
	limit.count = limit.count + n
	if limit.current then
		call('SETRANGE', key, '0', format('%016d', limit.count))
	else
		call('SET', key, format('%016d%016d%d', limit.count, limit.used - limit.count, limit.slot),
			'PX', lifetime((limit.slot + limit.keys + reach(limit)) * limit.width - now))
		if limit.open and limit.open ~= place then
			call('SETRANGE', KEYS[limit.at + limit.open - 1], '16', CLOSED)
		end
		limit.open, limit.current = place, true
	end
	if counts then
		counts[place] = limit.count
	end
end

-- A slot that lost its lifetime is written over when its turn comes again.
local function mend()
end

-- What the strategies and the driver share: library functions, and lifetimes.

local format, floor, ceil, sub = string.format, math.floor, math.ceil, string.sub

-- The lifetime, as PX and PEXPIRE take it, of what matters for so many more
-- microseconds: milliseconds rounded up, at least 1.
local function lifetime(micros)
	if micros < 1000 then
		return '1'
	end
	return format('%d', ceil(micros / 1000))
end
